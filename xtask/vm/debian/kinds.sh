# Arrays that are no block device, each by its unit: what a unit takes away must not be what its server needs.

# begins NAME: its unit has it served, and all members get in sync.
begins() {
    systemctl start "pinstripe@$1" || die "start $1: $(journalctl -u "pinstripe@$1" -n 20 --no-pager)"
    until_true 120 "$1 is not in sync" in_sync "$1" 3
}

# takes_load NAME EXPORT: a client writes there, and parity is right.
takes_load() {
    pinstripe bench --through "$2" --force --seconds 1 --warm-up 0 >/tmp/bench 2>&1 || die "$1: $(tail -n 5 /tmp/bench)"
    pinstripe check "$1" || die "$1: parity does not match"
}

# is_given_away: the socket of the array `shared` has its owner, its group, and a mode for both.
is_given_away() {
    g_found=$(stat -c '%U %G %a' /srv/small/shared.nbd)
    [ "$g_found" = "nobody disk 660" ] || die "the socket is open to $g_found"
}

# asked_disk: the daemon has heard from smartctl how the NVMe disk is.
asked_disk() {
    pinstripe status --json | tr -d ' \n' >/tmp/status
    grep -E '"device":"[^"]*nvme[^"]*"[^}]*"temperature_celsius":[0-9]' /tmp/status || { cat /tmp/status; return 1; }
}

# lets_in NQN: the target's file has a line for this host and no other, and nothing is restarted.
lets_in() {
    (
        umask 077
        echo "$1 $secrets" >/srv/small/hosts
    )
}

# lacks_one NAME: a member of the array is gone.
lacks_one() {
    ! in_sync "$1" 3
}

say "arrays by FUSE and by NBD, for others than root, of files, of an NVMe disk and of a target's"
nvme=/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_v0
mkdir /srv/small
for file in f0 f1 f2 s0 s1 r0 r1 r2; do
    truncate -s 32M /srv/small/$file
done
secrets='DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR: DHHC-1:00:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:'
(
    umask 077
    echo "* $secrets" >/srv/small/hosts
    echo "nqn.2026-01.com.example:safe $secrets" >/srv/small/secrets
)
mkdir -p /etc/pinstripe/conf.d
# Before the arrays are made: what is configured mdadm leaves alone.
cat >/etc/pinstripe/conf.d/kinds.toml <<TOML
[[array]]
name = "file"
members = ["/srv/small/f*"]
ublk = false
fuse = "/srv/file"

[[array]]
name = "shared"
members = ["/srv/small/s0", "/srv/small/s1", "$nvme"]
ublk = false
nbd = ["unix:/srv/small/shared.nbd"]
socket-owner = "nobody"
socket-group = "disk"

[[array]]
name = "remote"
members = ["/srv/small/r1", "/srv/small/r2", "nvme-tcp://127.0.0.1:4421/nqn.2026-01.com.example:safe?nsid=1"]
ublk = false
nbd = ["tcp:127.0.0.1:10811"]
dhchap-secrets = "/srv/small/secrets"

[[target]]
name = "safe"
listen = "127.0.0.1:4421"
nqn = "nqn.2026-01.com.example:safe"
devices = ["/srv/small/r0"]
dhchap-hosts = "/srv/small/hosts"
TOML
systemctl daemon-reload && systemctl start pinstripe-target@safe || die "start: $(journalctl -u pinstripe-target@safe --no-pager)"
pinstripe create --level 5 --name file /srv/small/f0 /srv/small/f1 /srv/small/f2 || die "create file"
pinstripe create --level 5 --name shared /srv/small/s0 /srv/small/s1 $nvme || die "create shared"
pinstripe create --level 5 --name remote --dhchap-secrets /srv/small/secrets /srv/small/r1 /srv/small/r2 \
    'nvme-tcp://127.0.0.1:4421/nqn.2026-01.com.example:safe?nsid=1' || die "create remote"

begins file
dd if=/dev/urandom of=/root/block bs=64k count=4 status=none
dd if=/root/block of=/srv/file bs=64k conv=notrunc,fsync status=none || die "write the file"
cmp -n 262144 /root/block /srv/file || die "the file differs"

begins remote
takes_load remote nbd://127.0.0.1:10811
say "a host that goes from the file of a target is cut off, and comes back with its line"
target=$(main_pid pinstripe-target@safe)
lets_in nqn.2026-01.com.example:none
until_true 60 "a host without a line is not cut off" lacks_one remote
lets_in '*'
until_true 120 "a host with a line is not let in" in_sync remote 3
[ "$(main_pid pinstripe-target@safe)" = "$target" ] || die "the target was started again"

begins shared
is_given_away
takes_load shared 'nbd+unix:///?socket=/srv/small/shared.nbd'
say "one that was killed takes its socket back, which it has given away"
server=$(main_pid pinstripe@shared)
kill -KILL "$server"
until_true 90 "it is not started again" is_another pinstripe@shared "$server"
is_given_away
takes_load shared 'nbd+unix:///?socket=/srv/small/shared.nbd'

say "the daemon asks the NVMe disk how it is"
systemctl restart pinstripe-daemon || die "restart the daemon"
until_true 60 "smartctl is not asked" asked_disk

for array in file shared remote; do
    systemctl stop "pinstripe@$array" || die "stop $array"
done
systemctl stop pinstripe-target@safe || die "stop the target"
[ ! -e /srv/file ] || die "the file is left"
# Its rule looks at the disk that was closed, and needs the configuration for that.
udevadm settle
rm -r /etc/pinstripe/conf.d/kinds.toml
systemctl daemon-reload
pinstripe reload || die "reload"
pinstripe zero-superblock --force $nvme || die "zero-superblock"
rm -r /srv/small
only_md0
no_errors
out step kinds
