#!/usr/bin/env bash
# Installs the worker on a host with systemd, or a new version, from the root of a checkout, as root.
set -euo pipefail

id npugx > /dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin npugx
python3 -m venv /opt/npugx
/opt/npugx/bin/pip install torch==2.13.0
/opt/npugx/bin/pip install '.[examples]'
install -D -m 644 -t /opt/npugx/app \
    examples/qwen3_generation.py examples/decode_worker.py examples/serve_decode.py
install -m 644 -t /etc/systemd/system examples/deploy/npugx-*.{service,socket,timer}
systemctl daemon-reload
systemctl enable npugx-worker.socket npugx-worker.service npugx-prune.timer
systemctl start npugx-worker.socket npugx-worker.service npugx-prune.timer
