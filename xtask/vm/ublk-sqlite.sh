# SQLite on our server's device: the server is killed in the middle of transactions, and the database goes on.
. /job/ublk.sh
modprobe ublk_drv
create u5
start
mkfs.ext4 -q -F $device || die mkfs
mount -t ext4 $device /mnt || die mount

# What a row must hold, by its number.
body="printf('%0700d', number * 7919)"

# rows: transactions of one row each, again and again, until there is /tmp/enough. Each row that is committed is said.
rows() {
    echo "PRAGMA journal_mode = $1; PRAGMA synchronous = FULL; CREATE TABLE rows (number INTEGER PRIMARY KEY, body TEXT);"
    r_number=0
    while [ ! -e /tmp/enough ]; do
        r_number=$((r_number + 1))
        echo "INSERT INTO rows SELECT number, $body FROM (SELECT $r_number AS number); SELECT 'row ' || $r_number;"
    done
}

# With a rollback journal, and with a write-ahead log.
for journal in DELETE WAL; do
    say "journal: $journal"
    rm -f /tmp/enough
    rows $journal | sqlite3 -bail /mnt/$journal.db >/tmp/rows 2>&1 &
    f_sqlite=$!
    kill_under 2 1 $f_sqlite /tmp/rows
    sleep 0.5
    : >/tmp/enough
    wait $f_sqlite || die "sqlite3: $(tail -n 3 /tmp/rows)"
    # What is on the array, and not what the guest remembers.
    umount /mnt
    fsck.ext4 -fn $device || die fsck
    mount -t ext4 $device /mnt || die mount
    said=$(grep -c '^row ' /tmp/rows) || die "no row was committed"
    [ "$(tail -n 1 /tmp/rows)" = "row $said" ] || die "a row was left out: $(tail -n 1 /tmp/rows), and $said rows"
    [ "$(sqlite3 /mnt/$journal.db 'PRAGMA integrity_check')" = ok ] || die "$journal: the integrity check fails"
    found=$(sqlite3 /mnt/$journal.db "SELECT count(*), min(number), max(number), sum(body <> $body) FROM rows")
    [ "$found" = "$said|1|$said|0" ] || die "$journal: rows, first, last and wrong ones are $found, of $said"
    out rows "$journal $said"
done
umount /mnt
consistent
stop_server
out done yes
