#!/bin/sh
# Installs the one-file daemon or the executable, its systemd unit and a default configuration. It can run again, such as
# for an upgrade: a configuration that exists is kept.
#
#   npm run build:daemon && sudo deploy/install.sh
#   npm run build:executable && sudo deploy/install.sh --executable
#   deploy/install.sh --uninstall       keeps the configuration and the state
#
# DESTDIR puts everything below another folder, such as for a package, and starts nothing. PREFIX: default /usr/local.
# UNITDIR: the folder of the unit, default /etc/systemd/system.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
built=$here/../dist/standalone
destdir=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
program=sluice.cjs
action=install

for argument in "$@"; do
    case $argument in
        --executable) program=sluice ;;
        --uninstall) action=uninstall ;;
        *)
            echo "install.sh: expected --executable or --uninstall, got $argument" >&2
            exit 2
            ;;
    esac
done

library=$prefix/lib/sluice
command=$prefix/bin/sluice
unit=${UNITDIR:-/etc/systemd/system}/sluice.service
config=/etc/sluice/sluice.yaml

# True if systemd runs here and the files are for this system.
manages_service() {
    [ -z "$destdir" ] && [ -d /run/systemd/system ]
}

uninstall() {
    if manages_service; then systemctl disable --now sluice || true; fi
    rm -f "$destdir$command" "$destdir$unit"
    rm -rf "$destdir$library"
    if manages_service; then systemctl daemon-reload; fi
    echo "removed sluice; $config and /var/lib/sluice are kept"
}

# Writes beside the target and renames, so that a running daemon never sees half a file.
put() { # mode source target
    install -D -m "$1" "$2" "$3.new"
    mv -f "$3.new" "$3"
}

install_files() {
    if [ ! -f "$built/$program" ]; then
        echo "install.sh: expected $built/$program, found none: run \`npm run build:daemon\` or \`npm run build:executable\`" >&2
        exit 2
    fi
    if [ "$program" = sluice.cjs ] && [ -z "$destdir" ] && ! command -v node > /dev/null; then
        echo "install.sh: expected Node 20.19 or later as \`node\`, found none: install it, or use --executable" >&2
        exit 2
    fi
    put 755 "$built/$program" "$destdir$library/$program"
    for licence in "$built"/*.txt "$here/../LICENSE"; do
        put 644 "$licence" "$destdir$library/$(basename "$licence")"
    done
    mkdir -p "$destdir$prefix/bin"
    ln -sfn "../lib/sluice/$program" "$destdir$command"
    # The other form, if it was installed before.
    for other in sluice sluice.cjs; do
        if [ "$other" != "$program" ]; then rm -f "$destdir$library/$other"; fi
    done
    put 644 "$here/sluice.service" "$destdir$unit"
    sed -i "s|/usr/bin/env sluice|$command|" "$destdir$unit"
    if [ ! -e "$destdir$config" ]; then put 644 "$here/sluice.yaml" "$destdir$config"; fi
}

if [ "$action" = uninstall ]; then
    uninstall
    exit
fi
install_files
if manages_service; then
    systemctl daemon-reload
    systemctl enable sluice
    systemctl restart sluice
fi
echo "installed $command, $unit and $config"
