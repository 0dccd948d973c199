"""Build the simulated NPU for an unpacked torch_npu wheel: python build.py WHEEL_FOLDER OUT_FOLDER

The wheel needs CANN's libraries, which exist on NPU hosts only. Here each one it can't find is
made, empty but for one thing: it needs libnpustub.so and libnpusettings.so. The first has
runtime.c and graph_engine.cpp, written by hand, and for all other symbols a function that returns
0. The second
(settings.cpp) lets torch_npu be loaded beside a CUDA build of torch. libnpusim.so (device.cpp)
gives tensors on the device CPU kernels.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib64")
OPENED_BY_NAME = {"libruntime.so", "libascend_dump.so", "libopapi.so"}
"""Not among the needed libraries: the first is fatal to miss, static kernels use the others."""
LOOKED_UP = re.compile(r"acl(rt|mdl|op|sys)?[A-Z]\w+")
DECLARED = re.compile(r"\b(acl(?:rt|mdl|op|sys)?[A-Z]\w+)\s*\(")
COMPILE = ("-O1", "-fPIC", "-w")


def output(*command: object) -> str:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False
    ).stdout


def build(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True)


def symbols(library: Path, kind: str) -> set[str]:
    """Dynamic symbols of a library: "--defined-only" or "--undefined-only" (strong ones)."""
    rows = [line.split() for line in output("nm", "-D", kind, library).splitlines()]
    wanted = [row for row in rows if len(row) >= 2 and (kind == "--defined-only" or row[-2] == "U")]
    return {row[-1].partition("@")[0] for row in wanted}


def torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None, "torch is not installed"
    assert found.origin is not None
    return Path(found.origin).parent


def npu_libraries(wheel: Path) -> list[Path]:
    npu = wheel / "torch_npu"
    core = npu / "dynamo" / "torchair" / "core"
    return [*npu.glob("lib/*.so"), *npu.glob("_C*.so"), *core.glob("*.so")]


def needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library))


def stub(wheel: Path, out: Path) -> None:
    """Make libnpustub.so and the empty libraries that lead to it."""
    libraries, include = npu_libraries(wheel), wheel / "torch_npu" / "include"
    folders = [torch_folder() / "lib", *{library.parent for library in libraries}]
    folders += [wheel / "torch_npu.libs", *map(Path, SYSTEM)]
    present: set[Path] = {*libraries, Path(sys.executable).resolve()}
    present |= set((torch_folder() / "lib").glob("*.so*"))
    missing = {*OPENED_BY_NAME}
    for name in {name for library in libraries for name in needed(library)}:
        places = [folder / name for folder in folders if (folder / name).exists()]
        present.update(places[:1])
        if not places:
            missing.add(name)
    python = Path(sysconfig.get_config_var("LIBDIR")) / sysconfig.get_config_var("LDLIBRARY")
    if ".so" in python.name and python.is_file():
        present.add(python)
    provided = set().union(*(symbols(library, "--defined-only") for library in present))
    asked = set().union(*(symbols(library, "--undefined-only") for library in libraries))
    asked = {name for name in asked - provided if not name.startswith(("Py", "_Py"))}

    build("gcc", *COMPILE, "-I", include, "-c", HERE / "runtime.c", "-o", out / "runtime.o")
    old_strings = "-D_GLIBCXX_USE_CXX11_ABI=0"
    engine = (HERE / "graph_engine.cpp", "-o", out / "graph_engine.o")
    build("g++", "-std=c++17", old_strings, *COMPILE, "-c", *engine)
    by_hand = (out / "runtime.o", out / "graph_engine.o")
    lines = output("nm", "--defined-only", *by_hand).splitlines()
    written = {line.split()[-1] for line in lines if line.strip() and not line.endswith(":")}
    generate(sorted((asked | looked_up(wheel)) - written), out / "generated.c")
    build(
        *("gcc", *COMPILE, "-shared", "-Wl,-soname,libnpustub.so", "-o", out / "libnpustub.so"),
        *(out / "generated.c", *by_hand, "-lpthread", "-lstdc++"),
    )
    linked = ("-L", torch_folder() / "lib", "-lc10", f"-Wl,-rpath,{torch_folder() / 'lib'}")
    build(
        *("g++", *with_torch(wheel), "-Wl,-soname,libnpusettings.so", HERE / "settings.cpp"),
        *("-o", out / "libnpusettings.so", *linked),
    )
    (out / "empty.c").write_text("")
    for name in sorted(missing):
        build(
            *("gcc", "-shared", f"-Wl,-soname,{name}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"),
            *("-o", out / name, out / "empty.c", "-L", out, "-lnpustub", "-lnpusettings"),
        )
    print(f"{len(missing)} libraries, {len(asked)} symbols, {len(asked & written)} of them by hand")


def looked_up(wheel: Path) -> set[str]:
    """What torch_npu looks up by name at run time, as far as the headers declare it."""
    library = wheel / "torch_npu" / "lib" / "libtorch_npu.so"
    texts = output("strings", "-n", "6", library).splitlines()
    headers = (wheel / "torch_npu" / "include" / "acl").glob("*.h")
    declared = {n for header in headers for n in DECLARED.findall(header.read_text("latin-1"))}
    return {text for text in texts if LOOKED_UP.fullmatch(text)} & declared


def generate(names: list[str], path: Path) -> None:
    """Write a function that returns 0 for each name."""
    lines = ["void npu_stub_trace_auto(const char*);"]
    for index, name in enumerate(names):
        lines.append(f'long f{index}(void) __asm__("{name}");')
        lines.append(f'long f{index}(void) {{ npu_stub_trace_auto("{name}"); return 0; }}')
    path.write_text("\n".join([*lines, ""]))


def with_torch(wheel: Path) -> list[object]:
    """Options of g++ for a library that includes headers of torch and of torch_npu."""
    torch = torch_folder() / "include"
    includes = (
        torch,
        torch / "torch" / "csrc" / "api" / "include",
        wheel / "torch_npu" / "include",
    )
    return ["-std=c++20", *COMPILE, "-shared", *(f"-I{each}" for each in includes)]


def simulate(wheel: Path, out: Path) -> None:
    """Make libnpusim.so."""
    torch, npu = torch_folder() / "lib", wheel / "torch_npu" / "lib"
    build(
        *("g++", *with_torch(wheel), HERE / "device.cpp", "-o", out / "libnpusim.so"),
        *("-L", torch, "-ltorch_cpu", "-lc10", "-L", npu, "-ltorch_npu", "-L", out, "-lnpustub"),
        *(
            f"-Wl,-rpath,{torch}",
            f"-Wl,-rpath,{npu}",
            "-Wl,-rpath,$ORIGIN",
            "-Wl,--allow-shlib-undefined",
        ),
    )


if __name__ == "__main__":
    wheel_folder, out_folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    out_folder.mkdir(parents=True, exist_ok=True)
    stub(wheel_folder, out_folder)
    simulate(wheel_folder, out_folder)
