# Three disks are exported by the kernel's nvmet-tcp, and our command makes and serves an array on them. One server is
# taken away under the array and comes back; at the end the kernel's md finds the array whole on the disks themselves.
. /job/serve.sh
name=n5
mount -t configfs none /sys/kernel/config 2>/dev/null || [ -d /sys/kernel/config/nvmet ] || die "no configfs"
N=/sys/kernel/config/nvmet
mkdir $N/ports/1
echo tcp >$N/ports/1/addr_trtype
echo ipv4 >$N/ports/1/addr_adrfam
echo 127.0.0.1 >$N/ports/1/addr_traddr
echo 4421 >$N/ports/1/addr_trsvcid
members=
for i in 0 1 2; do
    nqn=nqn.2026-01.com.example:disk$i
    mkdir $N/subsystems/$nqn
    echo 1 >$N/subsystems/$nqn/attr_allow_any_host
    mkdir $N/subsystems/$nqn/namespaces/1
    readlink -f /dev/member/t-$i | tr -d '\n' >$N/subsystems/$nqn/namespaces/1/device_path
    echo 1 >$N/subsystems/$nqn/namespaces/1/enable
    ln -s $N/subsystems/$nqn $N/ports/1/subsystems/$nqn
    members="$members nvme-tcp://127.0.0.1:4421/$nqn?nsid=1"
done
members="${members}&hdgst=1&ddgst=1"

say "create on $members"
# shellcheck disable=SC2086
pinstripe create --name n5 --level 5 --chunk 64K --bitmap internal --assume-clean $members || die "create fails"
# shellcheck disable=SC2086
pinstripe examine --json $members >/tmp/examined || die "examine fails: $(cat /tmp/examined)"
[ "$(grep -c '"member"' /tmp/examined)" = 3 ] || die "examine: $(cat /tmp/examined)"

# shellcheck disable=SC2086
serve $members
# shellcheck disable=SC2046
xtask pattern write /dev/nbd0 $(expected t)
blockdev --flushbufs /dev/nbd0
expect_content t /dev/nbd0

say "a server goes"
rm $N/ports/1/subsystems/nqn.2026-01.com.example:disk1
fio --name=verify --filename=/dev/nbd0 --offset=72m --size=32m --io_size=8m --rw=randwrite --bsrange=512-192k --direct=1 \
    --ioengine=psync --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio, degraded: $(tail -n 5 /tmp/fio)"
pinstripe detail --json /run/array.control | grep -q '"degraded": true' || die "it is not degraded"
dd if=/dev/nbd0 of=/tmp/front bs=1M count=64 2>/dev/null
xtask pattern verify /tmp/front 16384 $(expected t) 2>/tmp/error || die "degraded: $(cat /tmp/error)"

say "it comes back"
ln -s $N/subsystems/nqn.2026-01.com.example:disk1 $N/ports/1/subsystems/nqn.2026-01.com.example:disk1
tries=0
until pinstripe detail --json /run/array.control | grep -q '"degraded": false'; do
    tries=$((tries + 1))
    [ $tries -le 90 ] || die "it is not taken back by itself: $(pinstripe detail /run/array.control)"
    sleep 1
done
pinstripe check /run/array.control || die "parity does not match"
dd if=/dev/nbd0 of=/tmp/front bs=1M count=64 2>/dev/null
xtask pattern verify /tmp/front 16384 $(expected t) 2>/tmp/error || die "rebuilt: $(cat /tmp/error)"
stop_serving

say "the kernel looks at the disks"
for i in 0 1 2; do
    rm $N/ports/1/subsystems/nqn.2026-01.com.example:disk$i
    echo 0 >$N/subsystems/nqn.2026-01.com.example:disk$i/namespaces/1/enable
done
mdadm --assemble /dev/md9 --quiet --run /dev/member/t-0 /dev/member/t-1 /dev/member/t-2 || die "mdadm does not assemble it"
[ "$(attribute md9 degraded)" = 0 ] || die "the kernel finds it degraded"
dd if=/dev/md9 of=/tmp/front bs=1M count=64 2>/dev/null
xtask pattern verify /tmp/front 16384 $(expected t) 2>/tmp/error || die "in the kernel: $(cat /tmp/error)"
expect_consistent md9 n5
stop md9
out member yes
