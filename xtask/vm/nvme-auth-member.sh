# The kernel's nvmet asks our initiator who it is, and is asked who it is: an array of three namespaces, each with another hash and
# group. Without the secrets, and with wrong ones, none of it can be opened.
. /job/serve.sh
name=n5
mount -t configfs none /sys/kernel/config 2>/dev/null || [ -d /sys/kernel/config/nvmet ] || die "no configfs"
N=/sys/kernel/config/nvmet
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
mkdir -p /etc/nvme
echo $HOST >/etc/nvme/hostnqn
echo 11111111-2222-3333-4444-555555555555 >/etc/nvme/hostid
mkdir $N/hosts/$HOST
secret=$(nvme gen-dhchap-key --hmac=1 --nqn=$HOST)
controller=$(nvme gen-dhchap-key --hmac=0)
echo "$secret" >$N/hosts/$HOST/dhchap_key || die "nvmet takes no key"
echo "$controller" >$N/hosts/$HOST/dhchap_ctrl_key || die "nvmet takes no key of the controller"
mkdir $N/ports/1
echo tcp >$N/ports/1/addr_trtype
echo ipv4 >$N/ports/1/addr_adrfam
echo 127.0.0.1 >$N/ports/1/addr_traddr
echo 4421 >$N/ports/1/addr_trsvcid
members=
: >/tmp/secrets
: >/tmp/one-way
: >/tmp/wrong
: >/tmp/impostor
: >/tmp/moderate
chmod 600 /tmp/secrets /tmp/one-way /tmp/wrong /tmp/impostor /tmp/moderate
# The largest ones are used only where a line names them.
groups=group=null,ffdhe2048,ffdhe3072,ffdhe4096,ffdhe6144,ffdhe8192
for i in 0 1 2; do
    nqn=nqn.2026-01.com.example:disk$i
    mkdir $N/subsystems/$nqn
    ln -s $N/hosts/$HOST $N/subsystems/$nqn/allowed_hosts/$HOST
    mkdir $N/subsystems/$nqn/namespaces/1
    readlink -f /dev/member/t-$i | tr -d '\n' >$N/subsystems/$nqn/namespaces/1/device_path
    echo 1 >$N/subsystems/$nqn/namespaces/1/enable
    ln -s $N/subsystems/$nqn $N/ports/1/subsystems/$nqn
    members="$members nvme-tcp://127.0.0.1:4421/$nqn?nsid=1"
    echo "$nqn $secret $controller $groups" >>/tmp/secrets
done
echo "* $secret $groups" >>/tmp/one-way
echo "* $secret" >>/tmp/moderate
echo "* $(nvme gen-dhchap-key --nqn=$HOST)" >>/tmp/wrong
echo "* $secret $(nvme gen-dhchap-key)" >>/tmp/impostor
one=nvme-tcp://127.0.0.1:4421/nqn.2026-01.com.example:disk0?nsid=1

# agree HASH GROUP: what the kernel's target chooses from now on.
agree() {
    echo "hmac($1)" >$N/hosts/$HOST/dhchap_hash || die "nvmet doesn't take $1"
    echo "$2" >$N/hosts/$HOST/dhchap_dhgroup || die "nvmet doesn't take $2"
}

say "refused"
agree sha256 null
pinstripe examine --json "$one" >/tmp/out 2>&1 && die "examine works without secrets"
grep -q "no secret for it is known" /tmp/out || die "without secrets: $(cat /tmp/out)"
# nvmet closes the connection behind its refusal, and may do so before that is sent.
tries=0
until grep -q "it refuses this host" /tmp/out; do
    tries=$((tries + 1))
    [ $tries -lt 6 ] || die "with a wrong secret: $(tail -n 1 /tmp/out)"
    pinstripe examine --json --dhchap-secrets /tmp/wrong "$one" >/tmp/out 2>&1 && die "examine works with a wrong secret"
done
pinstripe examine --json --dhchap-secrets /tmp/impostor "$one" >/tmp/out 2>&1 && die "another controller is believed"
grep -q "can't prove" /tmp/out || die "another controller: $(cat /tmp/out)"
agree sha256 ffdhe6144
pinstripe examine --json --dhchap-secrets /tmp/moderate "$one" >/tmp/out 2>&1 && die "a large group is used unnamed"
out refused yes

say "every hash and group, one way and both ways"
for pair in "sha256 null" "sha384 null" "sha512 null" "sha256 ffdhe2048" "sha384 ffdhe3072" "sha512 ffdhe4096" \
    "sha256 ffdhe6144" "sha512 ffdhe8192"; do
    # shellcheck disable=SC2086
    agree $pair
    for file in one-way secrets; do
        pinstripe examine --dhchap-secrets /tmp/$file "$one" >/tmp/out 2>&1 || die "$pair, $file: $(cat /tmp/out)"
    done
done
out agreed yes

say "an array"
agree sha384 ffdhe3072
# shellcheck disable=SC2086
pinstripe create --dhchap-secrets /tmp/secrets --name n5 --level 5 --chunk 64K --bitmap internal --assume-clean $members ||
    die "create fails"
# shellcheck disable=SC2086
SHARDS=2 serve --dhchap-secrets /tmp/secrets $members
grep -c DHHC /proc/$s_server/cmdline && die "a secret is on the command line"
# shellcheck disable=SC2046
xtask pattern write /dev/nbd0 $(expected t)
blockdev --flushbufs /dev/nbd0

say "a server goes and comes back, with another hash and group"
rm $N/ports/1/subsystems/nqn.2026-01.com.example:disk1
dd if=/dev/zero of=/dev/nbd0 bs=64k seek=1200 count=16 oflag=direct 2>/dev/null || die "no write, degraded"
pinstripe detail --json /run/array.control | grep -q '"degraded": true' || die "it is not degraded"
agree sha512 ffdhe2048
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
for i in 0 1 2; do
    # Everything before the data, in lines: a device full of zeroes would be one long one.
    dd if=/dev/member/t-$i bs=1M count=4 2>/dev/null | tr '\0' '\n' | grep -q DHHC && die "a secret is on a member"
done
out member yes
