# A disk that hangs, as a suspended device-mapper device does: no person and no program can end what it was asked for. Its server
# must not be killed for that, must be there to be stopped, and must start again without the disk.

# slow_pid: the process of the array's unit.
slow_pid() {
    main_pid pinstripe@slow
}

# same_server PID WHEN: systemd has the unit in this process, and has started it only once.
same_server() {
    [ "$(slow_pid)" = "$1" ] || die "$2: the server was replaced: $(journalctl -u pinstripe@slow -n 20 --no-pager)"
}

# takes_writes: the file system on it does.
takes_writes() {
    timeout 900 dd if=/dev/urandom of=/srv/slow/more bs=64k count=8 oflag=direct conv=fsync status=none
}

# is_dropped: the array goes on without the disk.
is_dropped() {
    pinstripe detail slow >/tmp/slow
    grep 'did not answer in time' /tmp/slow
}

# is_whole: it is in sync. What a start has left out comes back by a person.
is_whole() {
    in_sync slow 3 || { pinstripe add slow /dev/mapper/late; return 1; }
}

# ends_within SECONDS WHAT COMMAND...: a command that must not hang, and how long it took.
ends_within() {
    e_limit=$1
    e_what=$2
    shift 2
    e_begin=$(uptime_seconds)
    timeout "$e_limit" "$@" || die "$e_what: status $? after $(($(uptime_seconds) - e_begin)) s: $(journalctl -u pinstripe@slow -n 20 --no-pager)"
    say "$e_what took $(($(uptime_seconds) - e_begin)) s"
}

# hang, answer: what the disk does from now on.
hang() {
    dmsetup suspend --noflush --nolockfs late || die "dmsetup suspend"
}

answer() {
    dmsetup resume late || die "dmsetup resume"
}

say "an array on a disk that will hang"
under=$(readlink -f $(by_id h1))
dmsetup create late --table "0 $(blockdev --getsz "$under") linear $under 0" || die "dmsetup create"
# With a disk that hangs the machine would not go down after a failure.
trap 'dmsetup resume late' EXIT
udevadm settle
# Before the array is made: what is configured mdadm leaves alone.
cp /etc/pinstripe/pinstripe.toml /root/pinstripe.toml
cat >>/etc/pinstripe/pinstripe.toml <<'TOML'

[[array]]
name = "slow"
members = ["/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_h[02]", "/dev/mapper/late"]
member-timeout = 90
run-after = 60
TOML
# shellcheck disable=SC2046
pinstripe create --level 5 --name slow $(by_id h0) /dev/mapper/late $(by_id h2) || die "create slow"
mkdir -p /etc/systemd/system/pinstripe@slow.service.d /srv/slow
# So that the watchdog would come before the disk is given up.
printf '[Service]\nWatchdogSec=30\n' >/etc/systemd/system/pinstripe@slow.service.d/watchdog.conf
systemctl daemon-reload && systemctl start pinstripe@slow || die "start slow: $(journalctl -u pinstripe@slow --no-pager)"
mkfs.ext4 -q /dev/pinstripe/slow && mount /dev/pinstripe/slow /srv/slow || die "mount slow"
until_true 120 "it is not in sync" in_sync slow 3

say "it hangs, and a server that waits isn't killed"
server=$(slow_pid)
takes_writes || die "write"
hang
dd if=/dev/urandom of=/srv/slow/file bs=64k count=16 oflag=direct conv=fsync status=none &
writer=$!
sleep 65
kill -0 $writer 2>/dev/null || die "the disk does not hang"
same_server "$server" "while the disk hangs"
until_true 180 "the disk is not given up" is_dropped
wait $writer || die "the write fails with the disk"
same_server "$server" "after the disk was given up"

say "an upgrade is refused"
if pinstripe upgrade slow 2>/tmp/refused; then
    die "a server is upgraded while a request of it hangs"
fi
grep -q 'does not answer, and its .* requests would keep the process waiting' /tmp/refused || die "the refusal: $(cat /tmp/refused)"
same_server "$server" "after the refusal"
takes_writes || die "it takes no writes after the refusal"

say "it is stopped, and started without the disk"
umount /srv/slow || die "umount slow"
# Its process can't end as long as the flush hangs: systemd gives it up.
ends_within 200 "stop" systemctl stop pinstripe@slow
journalctl --boot --unit pinstripe@slow | grep -q 'stopped: the superblocks are clean' || die "it is not stopped cleanly"
case $(systemctl is-active pinstripe@slow) in
inactive | failed) ;;
*) die "its unit is $(systemctl is-active pinstripe@slow)" ;;
esac
ends_within 200 "start" systemctl start pinstripe@slow
another=$(slow_pid)
grep -qz serve "/proc/$another/cmdline" || die "the main process is another one: $(tr '\0' ' ' <"/proc/$another/cmdline")"
mount /dev/pinstripe/slow /srv/slow && takes_writes || die "it takes no writes without the disk"
sleep 15
same_server "$another" "while a look at the disk hangs"

say "its server is killed, and started again without the disk"
kill -KILL "$another"
until_true 90 "the server is not started again" is_another pinstripe@slow "$another"
takes_writes || die "it takes no writes after the server's death"

say "the disk answers again"
answer
until_true 120 "it can't be added" pinstripe add slow /dev/mapper/late
until_true 120 "it is not in sync again" in_sync slow 3

say "its server is killed while a flush of it hangs"
hang
takes_writes &
writer=$!
sleep 5
server=$(slow_pid)
kill -KILL "$server"
# The kernel keeps the disk for what the server had asked of it, and nothing else. The next start does without the disk, for
# `run-after` is over while that says nothing.
until_true 420 "the server is not started while the disk hangs" is_another pinstripe@slow "$server"
wait $writer || die "the write is lost with the server"
answer
until_true 120 "it is not in sync after all" is_whole
pinstripe check slow || die "parity does not match"
umount /srv/slow && systemctl stop pinstripe@slow || die "stop slow"
# What the device mapper tells of a member starts no array that a person has stopped.
hang
answer
udevadm settle
sleep 2
[ "$(systemctl is-active pinstripe@slow)" = inactive ] || die "it was started again: $(udevadm info --query=property /dev/mapper/late)"
until_true 60 "something still holds the disk" dmsetup remove late
trap - EXIT
# Its rule looks at the disk that was closed, and needs the configuration for that.
udevadm settle
rm -r /etc/systemd/system/pinstripe@slow.service.d && rmdir /srv/slow || die "clean up"
mv /root/pinstripe.toml /etc/pinstripe/pinstripe.toml
systemctl daemon-reload
# shellcheck disable=SC2046
pinstripe zero-superblock --force $(by_id h0 h1 h2) || die "zero-superblock"
only_md0
no_errors
out step hung
