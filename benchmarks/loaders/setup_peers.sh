#!/bin/bash
# Makes the peers' virtual environments: setup_peers.sh [DIR], default ../bench beside the repository. Needs about 10 GB.
# A second call costs nothing. A peer that does not install leaves its reason in DIR/peers-NAME.failed, and run.py lists it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/../../../bench}
python=${PYTHON:-python3}
system="libopencv-dev libturbojpeg0-dev pkg-config g++ libavdevice59 libavfilter8 libgl1" # FFCV compiles; SPDL needs FFmpeg
mkdir -p "$dir"

missing=""
for package in $system; do dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"; done
if [ -n "$missing" ]; then
  echo "installing$missing"
  apt-get update -qq && apt-get install -qq -y --no-install-recommends $missing >/dev/null ||
    echo "note: not installed:$missing (ffcv and spdl need them)"
fi

for name in torch ffcv hf tf grain; do
  venv=$dir/peers-$name requirements=$here/requirements-$name.txt
  stamp=$venv/.installed-$(sha256sum "$requirements" | cut -c1-16)
  [ -e "$stamp" ] && echo "peers-$name: ready" && continue
  rm -f "$dir/peers-$name.failed"
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv" # an interrupted one has no pip
  if "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements" 2>"$dir/pip-$name.log"; then
    touch "$stamp"
    echo "peers-$name: installed"
  else
    grep -v WARNING "$dir/pip-$name.log" | tail -n 3 >"$dir/peers-$name.failed"
    echo "peers-$name: FAILED, $(tail -n 1 "$dir/peers-$name.failed")"
  fi
done
