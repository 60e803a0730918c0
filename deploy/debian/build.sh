#!/bin/sh
# Builds dist/standalone/sluice_VERSION_all.deb: the one-file daemon, its unit, its default configuration.
#
#   npm run build:debian
#
# DEBFULLNAME and DEBEMAIL name the maintainer of the package, as for Debian's own tools.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
# A pre-release such as 1.0.0-rc.1 sorts before 1.0.0 only with a tilde.
version=$(sed -n 's/^  "version": "\(.*\)",$/\1/p' "$root/package.json" | tr - '~')
maintainer="${DEBFULLNAME:-sluice} <${DEBEMAIL:-sluice@localhost}>"
package=$root/dist/standalone/sluice_${version}_all.deb

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"

DESTDIR=$stage PREFIX=/usr UNITDIR=/usr/lib/systemd/system sh "$here/../install.sh" > /dev/null
install -D -m 644 "$root/LICENSE" "$stage/usr/share/doc/sluice/copyright"
mkdir "$stage/DEBIAN"
sed -e "s|@VERSION@|$version|" -e "s|@MAINTAINER@|$maintainer|" "$here/control" > "$stage/DEBIAN/control"
install -m 644 "$here/conffiles" "$stage/DEBIAN/"
install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$stage/DEBIAN/"
dpkg-deb --root-owner-group --build "$stage" "$package" > /dev/null
echo "$package is built: \`apt install $package\` installs and starts the daemon"
