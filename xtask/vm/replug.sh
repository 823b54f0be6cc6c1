# $ARRAYS has one array of level 6. Disks of it are pulled, and put back: the kernel gives them up, and finds them again. Our
# server must take them back by itself, under whatever names, but not one that was taken out by hand, nor a copy of one. The
# disk `copy` is in no array.
. /job/serve.sh

read -r name level count chunk layout bitmap missing <<ARRAY
$ARRAYS
ARRAY
control=/run/array.control

# address DISK: what the kernel calls the place of a disk, as `channel id lun`.
address() {
    basename "$(readlink -f "/sys/block/$1/device")" | cut -d: -f2- | tr : ' '
}

# pull DISK: it is gone.
pull() {
    say "pull $1"
    echo 1 >"/sys/block/$1/device/delete"
}

# put_back ADDRESS: a disk is there again.
put_back() {
    say "put back $1"
    echo "$1" >/sys/class/scsi_host/host0/scan
    p_tries=0
    until [ -n "$(there "$1")" ]; do
        p_tries=$((p_tries + 1))
        [ $p_tries -lt 600 ] || die "the kernel does not find $1"
        sleep 0.1
    done
}

# there ADDRESS: the disk at this address.
there() {
    for t_disk in /sys/block/sd*; do
        [ "$(address "${t_disk##*/}")" != "$1" ] || echo "${t_disk##*/}"
    done
}

# until_said COUNT TEXT WHAT: until so many lines of detail have this text. The guest needs half a second for each try, and
# has to tell what is missing before its time is up.
until_said() {
    u_tries=0
    until [ "$(pinstripe detail $control | grep -c -- "$2")" = "$1" ]; do
        u_tries=$((u_tries + 1))
        [ $u_tries -lt 150 ] || die "$3: $(pinstripe detail $control)"
        sleep 0.1
    done
}

# until_told TEXT WHAT: until an event says so.
until_told() {
    u_tries=0
    until grep -q "$1" /tmp/events; do
        u_tries=$((u_tries + 1))
        [ $u_tries -lt 600 ] || die "$2: $(cat /tmp/events; pinstripe detail $control)"
        sleep 0.1
    done
}

# let_go DISK...: nothing has it open any more, so its name is free.
let_go() {
    for l_disk; do
        l_tries=0
        while ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q "/dev/$l_disk\b"; do
            l_tries=$((l_tries + 1))
            [ $l_tries -lt 600 ] || die "$l_disk is held open"
            sleep 0.1
        done
    done
}

# whole WHAT: everything is in sync, and what the array holds is right.
whole() {
    until_said "$count" ' in-sync ' "$1: members do not come back"
    expect_content "$name, $1" /dev/nbd0
    pinstripe check $control || die "$1: check fails"
}

# write: what the array holds anyway, so that what was away has missed it.
write() {
    # shellcheck disable=SC2046
    xtask pattern write /dev/nbd0 $(expected "$name") || die "writes fail"
    blockdev --flushbufs /dev/nbd0
}

create_and_fill
# shellcheck disable=SC2046
serve $(present "$name" "$count" -)
pinstripe monitor $control >/tmp/events &
one=$(disk "$name-1")
two=$(disk "$name-2")
at_one=$(address "$one")
at_two=$(address "$two")

pull "$one"
until_said 1 'its disk is gone' 'a disk that nothing asks for is not missed'
until_told Fail 'that it is gone was not told'
write
put_back "$at_one"
whole 'pulled while idle'
until_told 'is back, and what it missed' 'it was not taken back by the bitmap'
out replugged idle

# Both are known by names of the kernel's then, so that the first one back gets the name of the other.
pull "$two"
until_said 1 'its disk is gone' 'the second disk is not missed'
put_back "$at_two"
whole 'pulled after the other'

{ write; write; } &
writer=$!
pull "$one"
pull "$two"
wait $writer || die "writes fail without two disks"
until_said 2 'its disk is gone' 'two disks are not missed'
# The kernel gives the first free name, which was the other disk's.
if [ "$one" \< "$two" ]; then first=$one other=$at_one later=$at_two; else first=$two other=$at_two later=$at_one; fi
let_go "$one" "$two"
put_back "$later"
[ "$(there "$later")" = "$first" ] || die "$later is $(there "$later"), not $first: the names are the same"
until_said 1 'its disk is gone' 'the first disk does not come back'
put_back "$other"
whole 'pulled under writes'
out replugged renamed

pinstripe fail $control 3 || die fail
three=$(disk "$name-3")
at_three=$(address "$three")
let_go "$three"
pull "$three"
put_back "$at_three"
sleep 12
until_said 1 '3  missing' 'a disk that was taken out by hand came back'
[ -b "/dev/$three" ] || die "$three has another name"
pinstripe add --wait $control "/dev/$three" || die "add"
whole 'taken out by hand'
out replugged by-hand

four=$(disk "$name-4")
at_four=$(address "$four")
copy=$(disk copy)
at_copy=$(address "$copy")
pinstripe fail $control 4
pinstripe remove $control "/dev/member/$name-4"
dd if="/dev/$four" of="/dev/$copy" bs=1M oflag=direct 2>/dev/null
pinstripe add --wait $control "/dev/$four" || die "add"
pull "$copy"
pull "$four"
until_said 1 'its disk is gone' 'the fourth disk is not missed'
write
put_back "$at_copy"
until_told 'it is another disk than before' 'a copy is taken for the disk'
until_said 1 'its disk is gone' 'a copy was taken for the disk'
! grep -q "/dev/$copy is back" /tmp/events || die "a copy was taken for the disk"
put_back "$at_four"
whole 'beside a copy'
out replugged copy

stop_serving
# shellcheck disable=SC2046
mdadm --assemble /dev/md9 --quiet $(for disk in /dev/sd?; do [ "$(address "${disk#/dev/}")" = "$at_copy" ] || echo "$disk"; done) ||
    die "mdadm does not assemble it"
[ "$(attribute md9 degraded)" = 0 ] || die "degraded is $(attribute md9 degraded)"
expect_content "$name, in the kernel" /dev/md9
expect_consistent md9 "in the kernel"
stop md9
