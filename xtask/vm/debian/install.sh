# The package on a machine that has mdadm and an array of its own: two arrays as docs/install.md says, and a reboot.
. /job/lib.sh
. /job/debian.sh
booted

say "an array of mdadm's own"
# shellcheck disable=SC2046
mdadm --create /dev/md0 --quiet --run --level=1 --raid-devices=2 --metadata=1.2 $(by_id m0 m1) || die "mdadm --create"
mkfs.ext4 -q -L md /dev/md0 || die "mkfs on md0"
mdadm --detail --scan >>/etc/mdadm/mdadm.conf
mkdir -p /srv/md /srv/data /srv/net
echo 'LABEL=md /srv/md ext4 defaults 0 2' >>/etc/fstab
files >/root/before

say "install"
apt-get install --yes --quiet /job/first.deb || die "apt-get install"
[ "$(systemctl is-enabled pinstripe.target)" = enabled ] || die "pinstripe.target is not enabled"
[ "$(systemctl is-enabled pinstripe-daemon.service)" = disabled ] || die "the daemon is enabled"
[ -z "$(pgrep pinstripe)" ] || die "something was started: $(pgrep -a pinstripe)"

say "two arrays"
# shellcheck disable=SC2046
pinstripe create --level 5 --name data $(by_id d0 d1 d2 d3) || die "create data"
# shellcheck disable=SC2046
pinstripe create --level 5 --name net $(by_id n0 n1 n2) || die "create net"
for array in data net; do
    printf '[[array]]\nname = "%s"\nrun-after = 60\nublk = true\n' $array
done >/etc/pinstripe/pinstripe.toml
systemctl daemon-reload && systemctl start pinstripe@data pinstripe@net || die "start: $(journalctl -u 'pinstripe@*')"
mkfs.ext4 -q /dev/pinstripe/data || die "mkfs.ext4"
mkfs.xfs -q /dev/pinstripe/net || die "mkfs.xfs"
cat >>/etc/fstab <<'FSTAB'
/dev/pinstripe/data /srv/data ext4 defaults,nofail 0 2
/dev/pinstripe/net /srv/net xfs defaults,nofail,_netdev 0 2
FSTAB
systemctl daemon-reload && mount /srv/data && mount /srv/net || die "mount"
for place in data net; do
    cp -a /usr/lib/systemd /srv/$place/ || die "copy"
done
(cd /srv/data && find systemd -type f -exec sha256sum {} +) >/root/sums

say "the initial ramdisk has mdadm, and not our rule"
cp /etc/mdadm/mdadm.conf /root/mdadm.conf
for disk in d0 n0; do
    # shellcheck disable=SC2046
    pinstripe examine $(by_id $disk) | awk '/array uuid/ { print "ARRAY <ignore> UUID=" $3 }'
done >>/etc/mdadm/mdadm.conf
update-initramfs -u || die "update-initramfs"
# From here on only our rule keeps mdadm off, once the ramdisk is left.
cp /root/mdadm.conf /etc/mdadm/mdadm.conf
only_md0
out step installed
next_boot mounted
