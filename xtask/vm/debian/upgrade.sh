# The package is upgraded under load, removed, and purged.

# package COMMAND...: dpkg's lock may be ours, while the initial ramdisk is made anew.
package() {
    apt-get --yes --quiet --option DPkg::Lock::Timeout=600 "$@"
}

say "upgrade"
server=$(main_pid pinstripe@data)
daemon=$(main_pid pinstripe-daemon)
start_load
package install /job/second.deb || die "apt-get install of the upgrade"
[ "$(dpkg-query --showformat='${Version}' --show pinstripe)" = "$(cat /job/second)" ] || die "it is not upgraded"
[ "$(main_pid pinstripe@data)" = "$server" ] || die "the upgrade has restarted the server"
case $(readlink "/proc/$server/exe") in
/usr/bin/pinstripe) ;;
*) die "the server has the old program: $(journalctl -u pinstripe@data -n 20 --no-pager)" ;;
esac
progress "after the upgrade"
is_another pinstripe-daemon "$daemon" || die "the upgrade has not restarted the daemon"
[ "$(readlink "/proc/$(main_pid pinstripe-daemon)/exe")" = /usr/bin/pinstripe ] || die "the daemon has the old program"
until_true 60 "the daemon does not answer" pinstripe status
say "the server takes the new program"
systemctl kill --signal=KILL pinstripe@data
until_true 90 "the server is not started again" is_another pinstripe@data "$server"
progress "with the new program"
case $(readlink "/proc/$(main_pid pinstripe@data)/exe") in
/usr/bin/pinstripe) ;;
*) die "the server has the old program" ;;
esac
end_load
only_md0
out step upgraded

say "remove is refused while arrays are in use"
if package remove pinstripe; then
    die "the package is removed under mounted file systems"
fi
mounted /srv/data /dev/pinstripe/data
mounted /srv/net /dev/pinstripe/net
same_files

say "remove"
umount /srv/data /srv/net || die "umount"
sed -i -e /pinstripe/d -e '\#/srv/net#d' /etc/fstab
systemctl daemon-reload
package remove pinstripe || die "apt-get remove"
# It is udev that takes the names of devices away.
udevadm settle
[ -z "$(pgrep pinstripe)" ] || die "processes are left: $(pgrep -a pinstripe)"
[ -z "$(ls -d /dev/ublkb* /dev/pinstripe 2>/dev/null)" ] || die "devices are left: $(ls -d /dev/ublkb* /dev/pinstripe)"
# Masked are those that were enabled once: Debian's helper keeps that in mind until the purge, as dpkg what it needs.
systemctl list-units --all --plain --no-legend 'pinstripe*' | grep -v ' masked ' >/tmp/units || true
[ ! -s /tmp/units ] || die "units are left: $(cat /tmp/units)"
files >/root/removed
comm -13 /root/before /root/removed | grep -vE '^/(etc|var/lib)/pinstripe(/|$)|^/etc/needrestart(/|$)' |
    grep -vE '^/(etc/systemd/system|var/lib/systemd/deb-systemd-helper-[a-z]*)(/|$)' |
    grep -v '^/var/lib/dpkg/info/pinstripe\.' >/tmp/left || true
[ ! -s /tmp/left ] || die "after remove, there is more than configuration and state: $(cat /tmp/left)"
[ -e /etc/pinstripe/pinstripe.toml ] || die "remove has removed the configuration"
out step removed

say "purge"
package purge pinstripe || die "apt-get purge"
files >/root/purged
comm -13 /root/before /root/purged >/tmp/left
[ ! -s /tmp/left ] || die "after purge, there is: $(cat /tmp/left)"
[ ! -e /run/pinstripe ] || die "after purge, there is /run/pinstripe: $(ls -A /run/pinstripe)"
[ "$(systemctl is-system-running)" = running ] || die "units have failed: $(systemctl list-units --failed --plain --no-legend)"
# shellcheck disable=SC2046
for disk in $(by_id d0 d1 d2 d3 n0 n1 n2); do
    mdadm --examine "$disk" >/dev/null || die "$disk has no superblock any more"
done
only_md0
out step purged
next_boot gone
