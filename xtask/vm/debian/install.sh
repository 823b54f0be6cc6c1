# The package on a machine that has mdadm and an array of its own: two arrays as docs/install.md says, and a reboot.
. /job/lib.sh
. /job/debian.sh
booted

say "an array of mdadm's own"
# shellcheck disable=SC2046
mdadm --create /dev/md0 --quiet --run --level=1 --raid-devices=2 --metadata=1.2 $(by_id m0 m1) || die "mdadm --create"
mkfs.ext4 -q -L md /dev/md0 || die "mkfs on md0"
mdadm --detail --scan >>/etc/mdadm/mdadm.conf
mkdir -p /srv/md /srv/data /srv/net /srv/home
echo 'LABEL=md /srv/md ext4 defaults 0 2' >>/etc/fstab
files >/root/before

say "install"
apt-get install --yes --quiet /job/first.deb || die "apt-get install"
[ "$(systemctl is-enabled pinstripe.target)" = enabled ] || die "pinstripe.target is not enabled"
[ "$(systemctl is-enabled pinstripe-daemon.service)" = disabled ] || die "the daemon is enabled"
# The rules, which are new, ask the program what a disk is of.
udevadm settle
[ -z "$(pgrep pinstripe)" ] || die "something was started: $(pgrep -a pinstripe)"

say "two arrays"
# Before they are made: what is configured mdadm leaves alone. By links that udev makes after its rules:
# what is configured is no less ours while they are not there yet.
cat >/etc/pinstripe/pinstripe.toml <<'TOML'
[defaults]
ublk = true

[[array]]
name = "data"
members = ["/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_d*"]
run-after = 60

[[array]]
name = "net"
run-after = 60

[[target]]
name = "store"
listen = "127.0.0.1:4420"
nqn = "nqn.2026-01.com.example:store"
devices = ["/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_t0", "/srv/nothing/disk"]
state = "/var/lib/pinstripe/store"
state-create = true
allow-missing = true
TOML
# shellcheck disable=SC2046
pinstripe create --level 5 --name data $(by_id d0 d1 d2 d3) || die "create data"
# shellcheck disable=SC2046
pinstripe create --level 5 --name net $(by_id n0 n1 n2) || die "create net"
systemctl daemon-reload && systemctl start pinstripe@data pinstripe@net || die "start: $(journalctl -u 'pinstripe@*')"
mkfs.ext4 -q /dev/pinstripe/data || die "mkfs.ext4"
mkfs.xfs -q /dev/pinstripe/net || die "mkfs.xfs"
# One by the device, one by what udev has told of it.
cat >>/etc/fstab <<FSTAB
/dev/pinstripe/data /srv/data ext4 defaults,nofail 0 2
UUID=$(blkid -o value -s UUID /dev/pinstripe/net) /srv/net xfs defaults,nofail,_netdev,x-systemd.device-timeout=20 0 2
FSTAB
systemctl daemon-reload && mount /srv/data && mount /srv/net || die "mount"
for place in data net; do
    cp -a /usr/lib/systemd /srv/$place/ || die "copy"
done
(cd /srv/data && find systemd -type f -exec sha256sum {} +) >/root/sums

say "a target, of whose array mdadm would take what this machine has"
# shellcheck disable=SC2046
mdadm --create /dev/md8 --quiet --run --level=1 --raid-devices=2 --metadata=1.2 $(by_id t0) missing ||
    die "mdadm --create on t0"
udevadm settle
until_true 60 "mdadm --stop" mdadm --stop /dev/md8
udevadm settle
only_md0
systemctl start pinstripe-target@store || die "start: $(journalctl -u pinstripe-target@store --no-pager)"
serves_t0
sed -i /state-create/d /etc/pinstripe/pinstripe.toml && systemctl daemon-reload || die "without state-create"

say "an array of mdadm's is imported, in a login"
# shellcheck disable=SC2046
mdadm --create /dev/md9 --quiet --run --level=5 --raid-devices=3 --name=home --metadata=1.2 $(by_id h0 h1 h2) ||
    die "mdadm --create home"
udevadm settle
systemd-run --quiet --scope --slice=user.slice pinstripe import /dev/md9 || die "import"
[ "$(systemctl is-active pinstripe@home)" = active ] || die "its unit does not serve it"
mkfs.ext4 -q /dev/pinstripe/home || die "mkfs on home"
only_md0
# By hand, so nothing orders the end but the unit. What is written is in memory only when the machine goes down.
mount /dev/pinstripe/home /srv/home && cp -a /usr/bin/perl /srv/home/ || die "write"

say "the initial ramdisk has mdadm, and not our rule"
# The starts have had it made anew: if that is over nothing is left to do, and if it isn't this waits for it.
systemctl start pinstripe-ramdisk || die "ramdisk: $(journalctl -u pinstripe-ramdisk --no-pager)"
for what in 'name="data"' 'SYMLINK=="disk/by-id/scsi-0QEMU_QEMU_HARDDISK_t0"'; do
    grep -qF "$what" /var/lib/pinstripe/ramdisk || die "it was not made: $(cat /var/lib/pinstripe/ramdisk)"
done
only_md0
# A start that takes longer than its mount waits for a device.
late=/etc/systemd/system/pinstripe@net.service.d
mkdir -p $late && printf '[Service]\nExecStartPre=/bin/sleep 25\n' >$late/late.conf
out step installed
next_boot mounted
