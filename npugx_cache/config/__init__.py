"""Reads the settings: arguments, then environment, then defaults. Only this reads `os.environ`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args

from npugx_cache.errors import OptionError
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
NO_FOLDER = Path("/dev/null/npugx_cache")
"""The default cache folder of a user without a home. No folder can be made there."""
NO_HOME = (
    "this user has no home folder, so there is no default for the cache folder. Name a folder with "
    "NPUGX_CACHE_DIR"
)
CacheMode = Literal["on", "readonly", "off"]
EvictionPolicy = Literal["lru", "cost"]
OnMiss = Literal["compile", "eager", "raise"]
TrustMode = Literal["private", "group", "signed"]
Verify = Literal["off", "first", "recompile"]
Wiring = Literal["0", "1", "replace"]
EnginePasses = Literal["run", "store"]
VLLM, SGLANG = "NPUGX_CACHE_VLLM", "NPUGX_CACHE_SGLANG"
ENGINE_PASSES = "NPUGX_CACHE_ENGINE_PASSES"

VARIABLES = (
    "NPUGX_CACHE_DIR",
    "NPUGX_CACHE_LOCAL_DIR",
    "NPUGX_CACHE_BAKED_DIR",
    "NPUGX_CACHE_REMOTE",
    "NPUGX_CACHE",
    "NPUGX_CACHE_ON_MISS",
    "NPUGX_CACHE_TRUST",
    "NPUGX_CACHE_KEY_FILE",
    "NPUGX_CACHE_MAX_SIZE",
    "NPUGX_CACHE_MAX_ENTRIES",
    "NPUGX_CACHE_MAX_AGE",
    "NPUGX_CACHE_POLICY",
    "NPUGX_CACHE_LOCK_WAIT",
    "NPUGX_CACHE_RECOMPILE_LIMIT",
    "NPUGX_CACHE_VERIFY",
    "NPUGX_CACHE_UNTESTED_TORCH",
    "NPUGX_CACHE_STRICT",
    "NPUGX_CACHE_LOG",
    "NPUGX_CACHE_VLLM",
    "NPUGX_CACHE_SGLANG",
    "NPUGX_CACHE_ENGINE_PASSES",
    "NPUGX_STATIC_KERNEL_WAIT",
)
"""Every environment variable of ours that this release reads."""
_NAMES_OF_CACHE = ("NPUGX_CACHE_DIR", "TORCH_NPU_COMPILE_CACHE_DIR")
_OF_TESTS = ("NPUGX_TEST_", "NPUGX_STRESS_")
_LOG_LEVELS = ("debug", "info", "warning", "error")

_RECOMPILES = 16
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a cached function or of a command.

    `local_dir` is a folder of this node that is asked before a slow shared `cache_dir`;
    `baked_dirs` are read-only folders that are asked after it. `remote` is the address of a tier
    that hosts without a common folder share. `max_size` (bytes), `max_entries` and `max_age`
    (seconds since the last use) hold for each folder that is written; `policy` says which entries
    go first.

    `lock_wait`, in seconds, is the longest a worker waits for another worker's compile of the
    same graph before it compiles by itself. None: twice as long as the work took the last time, but
    at least 30 s and at most 10 minutes; 10 minutes if nobody has compiled it yet.

    `on_miss`: what a worker does when no stored graph fits a call. `eager` runs the function, and
    `raise` raises `CacheMiss`; neither compiles, for `.warm()` either.

    `recompile_limit` is how many compiles calls may cause in a process, for each function and
    object that it is bound to; further calls that need a new graph run eagerly (`recompiles.py`).
    With 0, calls only restore stored graphs, and only `.warm()` compiles. A call beyond the limit
    that no entry accepts is not looked up again in the process.

    `verify`: with `first`, the first result of a new graph is compared with the function's own
    (`entry/first_result.py`); with `recompile`, each hit is compiled again as well, and compared
    (`entry/recheck.py`).

    `untested_torch`: try the cache on a torch that it was not tested on (`key/environment.py`).
    """

    cache_dir: Path
    local_dir: Path | None = None
    baked_dirs: tuple[Path, ...] = ()
    remote: str | None = None
    mode: CacheMode = "on"
    on_miss: OnMiss = "compile"
    trust: TrustMode = "private"
    key_file: Path | None = None
    max_size: int | None = None
    max_entries: int | None = None
    max_age: float | None = None
    policy: EvictionPolicy = "lru"
    lock_wait: float | None = None
    recompile_limit: int = _RECOMPILES
    verify: Verify = "first"
    untested_torch: bool = False
    strict: bool = False


def load(
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    strict: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Merge the arguments of one decoration with the environment.

    Raises `OptionError` naming the variable when its value is not usable.
    """
    env = os.environ if environ is None else environ
    key_file = env.get("NPUGX_CACHE_KEY_FILE")
    # A key file alone means trust `signed`: a key that is given and not used would be a trap.
    trust = _choice(
        env,
        "NPUGX_CACHE_TRUST",
        "signed" if key_file else "private",
        ("private", "group", "signed"),
    )
    return Settings(
        cache_dir=_cache_dir(cache_dir, env),
        local_dir=next(iter(_folders(env, "NPUGX_CACHE_LOCAL_DIR")), None),
        baked_dirs=_folders(env, "NPUGX_CACHE_BAKED_DIR", os.pathsep),
        remote=_remote(env),
        mode=cast("CacheMode", _choice(env, "NPUGX_CACHE", "on", ("on", "readonly", "off"))),
        on_miss=cast("OnMiss", _choice(env, "NPUGX_CACHE_ON_MISS", "compile", get_args(OnMiss))),
        trust=cast("TrustMode", trust),
        key_file=_path("NPUGX_CACHE_KEY_FILE", key_file) if key_file else None,
        max_size=_parse_variable(env, "NPUGX_CACHE_MAX_SIZE", parse_size),
        max_entries=_parse_variable(env, "NPUGX_CACHE_MAX_ENTRIES", _count),
        max_age=_parse_variable(env, "NPUGX_CACHE_MAX_AGE", parse_duration),
        policy=cast(
            "EvictionPolicy",
            _choice(env, "NPUGX_CACHE_POLICY", "lru", get_args(EvictionPolicy)),
        ),
        lock_wait=_parse_variable(env, "NPUGX_CACHE_LOCK_WAIT", _seconds),
        recompile_limit=_recompile_limit(env),
        verify=cast("Verify", _choice(env, "NPUGX_CACHE_VERIFY", "first", get_args(Verify))),
        untested_torch=_flag(env, "NPUGX_CACHE_UNTESTED_TORCH"),
        strict=strict or _flag(env, "NPUGX_CACHE_STRICT"),
    )


def parse_duration(text: str) -> float:
    """Seconds of '12h' or '30d'; ValueError for anything else."""
    stripped = text.strip().lower()
    seconds = _SECONDS.get(stripped[-1:], 0.0)
    number = stripped[:-1].strip()
    if not seconds or not number.replace(".", "", 1).isdecimal():
        raise ValueError(f"{text!r} is not a number with s, m, h, d or w, such as 12h or 30d")
    return float(number) * seconds


def parse_size(text: str) -> int:
    """Bytes of '500M', '2GiB' or '123456'; ValueError for anything else."""
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1] if number[-1:].isalpha() else ""
    if unit not in _SIZE_UNITS:
        raise ValueError(f"unknown unit in size {text!r}: use K, M, G or T")
    size = float(number.removesuffix(unit)) * _SIZE_UNITS[unit]
    if size < 0:
        raise ValueError(f"negative size {text!r}")
    return int(size)


def _cache_dir(argument: str | os.PathLike[str] | None, env: Mapping[str, str]) -> Path:
    if argument:
        return _path("cache_dir", argument)
    for name in _NAMES_OF_CACHE:
        if named := env.get(name):
            return _path(name, named)
    from platformdirs import user_cache_path

    try:
        usual = user_cache_path("npugx_cache")
    except RuntimeError:
        return NO_FOLDER
    return usual if usual.is_absolute() else NO_FOLDER  # some releases give a path with a "~"


def _path(name: str, text: str | os.PathLike[str]) -> Path:
    """The path that a setting names; OptionError if there is no such path for this user."""
    try:
        # Made absolute at decoration, because a later chdir must not move the cache.
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        fault = f"{error}".rstrip(".")
        raise OptionError(f"{name}={os.fspath(text)!r}: {fault}. Write the whole path") from None


def state_folder() -> Path:
    """The folder for derived data of this user on this host, by the environment of this moment.

    It is the folder that platformdirs names on Unix. platformdirs is not imported, because a
    restart needs nothing else of it.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.expanduser("~/.local/state")  # noqa: PTH111 - Path.home() raises
    # A user without a home has no such folder, and a relative path would make one in the working
    # directory. Below /dev/null no folder can be made.
    return state_folder_in(base if base.startswith("/") else "/dev/null")


def state_folder_in(base: str) -> Path:
    """The folder for derived data of a process whose `XDG_STATE_HOME` is `base`."""
    return Path(base) / "npugx_cache"


def _folders(env: Mapping[str, str], name: str, separator: str | None = None) -> tuple[Path, ...]:
    text = env.get(name, "")
    names = text.split(separator) if separator else [text]
    return tuple(_path(name, each) for each in names if each)


_REMOTE = "NPUGX_CACHE_REMOTE"


def _remote(env: Mapping[str, str]) -> str | None:
    """The address of the remote tier; OptionError, which does not quote it, for a wrong one."""
    text = env.get(_REMOTE)
    if not text:
        return None
    from npugx_cache.config import remote_address

    try:
        remote_address.parse(text)
    except ValueError as error:
        raise OptionError(f"{_REMOTE}: {error}") from None
    return text


def remote_credentials(engine: str) -> dict[str, str]:
    """The options of a remote engine that its own variables give. S3 and OBS read theirs alone."""
    names = {
        "redis": {"REDISCLI_AUTH": "password"},
        "webdav": {
            "WEBDAV_USERNAME": "username",
            "WEBDAV_PASSWORD": "password",
            "WEBDAV_TOKEN": "token",
        },
    }
    found = {option: os.environ.get(name, "") for name, option in names.get(engine, {}).items()}
    return {option: value for option, value in found.items() if value}


def _choice(env: Mapping[str, str], name: str, default: str, valid: tuple[str, ...]) -> str:
    value = env.get(name, default) or default
    if value not in valid:
        raise OptionError(f"{name}={value!r}: valid values are {', '.join(valid)}")
    return value


def _flag(env: Mapping[str, str], name: str) -> bool:
    return _choice(env, name, "0", ("0", "1")) == "1"


def _parse_variable(env: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    """The value of a variable, or None if it is not set; OptionError if `parse` refuses it."""
    text = env.get(name)
    if not text:
        return None
    try:
        return parse(text)
    except (ValueError, OverflowError) as error:
        raise OptionError(f"{name}={text!r}: {error}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError("expected a number of seconds, 0 or more")
    return seconds


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"expected a whole number, {least} or more")
    return int(text)


def _recompile_limit(env: Mapping[str, str]) -> int:
    limit = _parse_variable(env, "NPUGX_CACHE_RECOMPILE_LIMIT", lambda text: _count(text, least=0))
    return _RECOMPILES if limit is None else limit


_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def rank() -> int | None:
    """The rank of this process as its launcher (torchrun, mpirun, srun) gives it, if one does."""
    found = (os.environ.get(name, "") for name in _RANKS)
    return next((int(text) for text in found if text.isdecimal()), None)


_COMPILER_PREFIXES = ("TORCHDYNAMO_", "TORCH_DYNAMO_", "TORCH_COMPILE_", "AOT_", "TORCHAOT_")
_NO_EFFECT_ON_A_TRACE = frozenset(
    {
        "TORCHDYNAMO_VERBOSE",
        "TORCHDYNAMO_DEBUG_FUNCTION",
        "TORCHDYNAMO_REPRO_AFTER",
        "TORCHDYNAMO_REPRO_LEVEL",
        "TORCH_COMPILE_DEBUG",
        "TORCH_COMPILE_DEBUG_DIR",
        "TORCH_COMPILE_JOB_ID",
        "TORCH_COMPILE_STRICT_AUTOGRAD_CACHE",
    }
)
_GE_PREFIXES = (
    *("ACL_", "ASCEND_", "AUTOFUSE_", "GE_", "NPU_", "TE_"),
    *("ENABLE_DYNAMIC_SHAPE_MULTI_STREAM", "MAX_COMPILE_CORE_NUMBER", "OP_NO_REUSE_MEM"),
)
_NO_EFFECT_ON_A_GE_GRAPH = frozenset(
    {
        # Where CANN and operators added to it are: the key has their versions and content.
        *("ASCEND_AICPU_PATH", "ASCEND_CUSTOM_OPP_PATH", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH"),
        *("ASCEND_TOOLKIT_HOME", "ASCEND_CACHE_PATH", "ASCEND_WORK_PATH"),
        # Which devices a process sees, and what is logged.
        *("ASCEND_DEVICE_ID", "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"),
        *("ASCEND_GLOBAL_EVENT_ENABLE", "ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_PROCESS_LOG_PATH"),
        *("ASCEND_MODULE_LOG_LEVEL", "ASCEND_SLOG_PRINT_TO_STDOUT", "ASCEND_HOST_LOG_FILE_NUM"),
    }
)
_INDUCTOR_PREFIXES = ("TORCHINDUCTOR_", "TORCH_INDUCTOR_", "AOT_INDUCTOR_", "AOTINDUCTOR_")
_NO_EFFECT_ON_A_LIBRARY = frozenset(
    {
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCHINDUCTOR_COMPILE_THREADS",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        "TORCHINDUCTOR_FX_GRAPH_CACHE",
        "TORCHINDUCTOR_WORKER_START",
    }
)


def environment_variable(name: str) -> str | None:
    """The present value of an environment variable that traced code has read."""
    return os.environ.get(name)


def wiring(variable: str) -> Wiring:
    """Whether a serving engine compiles with us; raises `OptionError`.

    `1`: where the engine would have no compiler of its own; `replace`: in the place of its own too.
    """
    return cast("Wiring", _choice(os.environ, variable, "0", get_args(Wiring)))


def engine_passes() -> EnginePasses:
    """What becomes of a graph for which a serving engine has passes; raises `OptionError`.

    `run`: the passes run at each start, and nothing is stored. `store`: what they make is stored,
    and the user answers for what they depend on (`integrations.stated_passes`).
    """
    return cast("EnginePasses", _choice(os.environ, ENGINE_PASSES, "run", get_args(EnginePasses)))


def engine_environment() -> dict[str, str]:
    """The variables of serving engines, without addresses, folders, ranks and secrets."""
    own = {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "SGLANG_"))}
    return {name: own[name] for name in sorted(own) if _OF_PROCESS.isdisjoint(name.split("_"))}


_OF_PROCESS = frozenset(
    {
        *("HOST", "PORT", "IP", "URL", "RANK", "INSTANCE", "LOGGING", "LOG", "USAGE"),
        *("ROOT", "PATH", "DIR", "FOLDER", "FILE", "KEY", "TOKEN"),
    }
)
"""Whole words: `LOG` must not take out a variable about logits, nor `PORT` one about support."""


def set_if_absent(name: str, value: str) -> None:
    """Set a variable for this process and those that it starts, unless somebody has set it."""
    os.environ.setdefault(name, value)


_STATIC_KERNEL_WAIT = 1800.0
_CANN_LOG_LEVELS = {"0": "debug", "1": "info", "2": "warning", "3": "error", "4": None}


def static_kernel_wait() -> float:
    """For how many seconds CANN may compile the static kernels of one graph, or install them."""
    seconds = _parse_variable(os.environ, "NPUGX_STATIC_KERNEL_WAIT", _seconds)
    return _STATIC_KERNEL_WAIT if seconds is None else seconds


def cann_log_level() -> str | None:
    """The log level of CANN's tools as a word, by CANN's own variable; None: they log nothing."""
    return _CANN_LOG_LEVELS.get(os.environ.get("ASCEND_GLOBAL_LOG_LEVEL", "3"), "error")


def cann_home() -> Path | None:
    """Where CANN is installed, if its variables are set."""
    home = os.environ.get("ASCEND_HOME_PATH")
    return Path(home) if home else None


def custom_operator_folders() -> tuple[Path, ...]:
    """The folders of operators that were added to CANN, in the order in which CANN searches."""
    installed = Path(os.environ.get("ASCEND_OPP_PATH", "")) / "vendors"
    beside = _folders(os.environ, "ASCEND_CUSTOM_OPP_PATH", os.pathsep)
    return tuple(folder for folder in (*beside, installed) if folder.is_dir())


def wants_graphs() -> bool:
    """Whether torch's variable TORCH_COMPILE_DEBUG asks that graphs are written to files."""
    return os.environ.get("TORCH_COMPILE_DEBUG", "0") == "1"


def own_environment() -> dict[str, str]:
    """The environment variables with our prefix, also those that are no setting of this release."""
    return {name: value for name, value in os.environ.items() if name.startswith("NPUGX_")}


def environment_with(**changes: str) -> dict[str, str]:
    """The environment of this process with some changes, for a process that it starts."""
    return {**os.environ, **changes}


_STEERING = ("NPUGX_", "TORCH", "PYTORCH_", "ASCEND_", "CUDA_", "OMP_", "MKL_", "PYTHON")
_CONFIDENTIAL = "KEY|TOKEN|SECRET|PASS|PWD|AUTH|CREDENTIAL"
_USER_IN_URL = r"://[^/\s]*@|[?&][^=&]*(?i:key|token|secret|pass|auth)[^=&]*="


def steering_environment() -> dict[str, str]:
    """The variables that steer us, torch or a device. Those that may be secret have no value."""
    return {
        name: "(set)" if _may_be_secret(name, value) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(_STEERING)
    }


def _may_be_secret(name: str, value: str) -> bool:
    return (
        name == _REMOTE
        or re.search(_CONFIDENTIAL, name) is not None
        or re.search(_USER_IN_URL, value) is not None
    )


def unknown_variables() -> list[str]:
    """The names of variables with our prefix that this release does not read, without tests'."""
    return sorted(
        name
        for name in os.environ
        if name.startswith("NPUGX_") and name not in VARIABLES and not name.startswith(_OF_TESTS)
    )


def log_level() -> str | None:
    """From which level on our log lines are shown on stderr; None: as logging is set up.

    Raises `OptionError`. It is no field of `Settings`, because it holds for a process.
    """
    level = os.environ.get("NPUGX_CACHE_LOG", "").strip().lower()
    return (
        _choice({"NPUGX_CACHE_LOG": level}, "NPUGX_CACHE_LOG", "", _LOG_LEVELS) if level else None
    )


def is_dumb_terminal() -> bool:
    """Whether a terminal, if there is one, shows control sequences in the place of doing them."""
    return os.environ.get("TERM", "dumb") in {"", "dumb"}


def named_folders() -> dict[str, str]:
    """The environment variables that name a cache folder, in the order in which they count."""
    return {name: os.environ[name] for name in _NAMES_OF_CACHE if os.environ.get(name)}


def compiler_environment() -> tuple[tuple[str, str], ...]:
    """Environment variables that can change what Dynamo traces, unknown ones included."""
    return _variables(_COMPILER_PREFIXES, _NO_EFFECT_ON_A_TRACE)


def inductor_environment() -> tuple[tuple[str, str], ...]:
    """Environment variables that can change what Inductor makes, unknown ones included."""
    return _variables(_INDUCTOR_PREFIXES, _NO_EFFECT_ON_A_LIBRARY)


def graph_engine_environment() -> tuple[tuple[str, str], ...]:
    """Environment variables that can change what GE compiles, unknown ones included."""
    return _variables(_GE_PREFIXES, _NO_EFFECT_ON_A_GE_GRAPH)


def _variables(prefixes: tuple[str, ...], ignored: frozenset[str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, os.environ[name])
        for name in sorted(os.environ)
        if name.startswith(prefixes) and name not in ignored
    )
