# PostgreSQL on our server's device: the server is killed in the middle of transactions, and the database goes on.
. /job/ublk.sh
modprobe ublk_drv
tar -xf /job/postgres.tar -C / || die tar
echo 'postgres:x:100:100::/tmp:/bin/sh' >/etc/passwd
echo 'postgres:x:100:' >/etc/group
chmod 1777 /dev/shm /tmp
mkdir -p /run/postgres
chown postgres:postgres /run/postgres
export PGHOST=/run/postgres PGUSER=postgres PGDATABASE=postgres LC_ALL=C

# postgres PROGRAM OPTION...: by the user that it wants.
postgres() {
    p_program=$1
    shift
    /sbin/setpriv --reuid=100 --regid=100 --clear-groups "/usr/lib/postgresql/15/bin/$p_program" "$@"
}

start_postgres() {
    postgres pg_ctl start --silent --wait --timeout=120 --pgdata=/mnt/cluster --log=/tmp/postgres.log \
        --options='-k /run/postgres -c listen_addresses= -c shared_buffers=16MB -c checkpoint_timeout=30s -c max_wal_size=64MB -c jit=off' ||
        die "PostgreSQL: $(tail -n 10 /tmp/postgres.log)"
}

# What a row must hold, by its number.
body="lpad((number * 7919::bigint)::text, 700, '0')"

# rows: transactions of one row each, again and again, until there is /tmp/enough. Each row that is committed is said.
rows() {
    echo "CREATE TABLE rows (number integer PRIMARY KEY, body text);"
    r_number=0
    while [ ! -e /tmp/enough ]; do
        r_number=$((r_number + 1))
        echo "INSERT INTO rows SELECT number, $body FROM (SELECT $r_number AS number) AS one;"
        echo "\\echo row $r_number"
    done
}

create u5
start
mkfs.ext4 -q -F $device || die mkfs
mount -t ext4 $device /mnt || die mount
mkdir /mnt/cluster
chown postgres:postgres /mnt/cluster
postgres initdb --data-checksums --auth=trust --pgdata=/mnt/cluster >/tmp/initdb 2>&1 || die "initdb: $(tail -n 5 /tmp/initdb)"
start_postgres
postgres pgbench --initialize --quiet >/tmp/pgbench 2>&1 || die "pgbench: $(tail -n 5 /tmp/pgbench)"

rows | postgres psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 >/tmp/rows 2>&1 &
f_rows=$!
postgres pgbench --client=2 --time=600 --no-vacuum >/tmp/pgbench 2>&1 &
f_pgbench=$!
kill_under 3 1.5 $f_rows /tmp/rows
kill -0 $f_pgbench || die "pgbench has ended: $(tail -n 5 /tmp/pgbench)"
sleep 0.5
: >/tmp/enough
wait $f_rows || die "psql: $(tail -n 3 /tmp/rows)"
# Under pgbench's transactions it forgets all that it hasn't written, and has its log to go by.
postgres pg_ctl stop --silent --mode=immediate --pgdata=/mnt/cluster || die "pg_ctl: $(tail -n 5 /tmp/postgres.log)"
wait $f_pgbench || true
# What is on the array, and not what the guest remembers.
umount /mnt
fsck.ext4 -fn $device || die fsck
mount -t ext4 $device /mnt || die mount
start_postgres
grep -q 'database system was not properly shut down' /tmp/postgres.log || die "it recovered nothing: $(tail -n 10 /tmp/postgres.log)"

ask() {
    postgres psql --no-psqlrc --tuples-only --no-align --command="$1" || die "psql: $(tail -n 5 /tmp/postgres.log)"
}
said=$(grep -c '^row ' /tmp/rows) || die "no row was committed"
[ "$(tail -n 1 /tmp/rows)" = "row $said" ] || die "a row was left out: $(tail -n 1 /tmp/rows), and $said rows"
found=$(ask "SELECT count(*), min(number), max(number), count(*) FILTER (WHERE body <> $body) FROM rows")
[ "$found" = "$said|1|$said|0" ] || die "rows, first, last and wrong ones are $found, of $said"
transactions=$(ask 'SELECT count(*) FROM pgbench_history')
[ "$transactions" -gt 0 ] || die "pgbench has committed nothing"
sums=$(ask 'SELECT count(DISTINCT sum) FROM (SELECT sum(abalance) FROM pgbench_accounts UNION ALL SELECT sum(bbalance) FROM pgbench_branches
    UNION ALL SELECT sum(tbalance) FROM pgbench_tellers UNION ALL SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS sums')
[ "$sums" = 1 ] || die "pgbench's balances add up to $sums sums"
postgres pg_amcheck --all --install-missing --heapallindexed --parent-check >/tmp/amcheck 2>&1 || die "pg_amcheck: $(tail -n 5 /tmp/amcheck)"
postgres pg_ctl stop --silent --mode=fast --pgdata=/mnt/cluster || die "pg_ctl: $(tail -n 5 /tmp/postgres.log)"
postgres pg_checksums --check --pgdata=/mnt/cluster >/tmp/checksums 2>&1 || die "pg_checksums: $(tail -n 5 /tmp/checksums)"
grep -q 'Bad checksums:  *0$' /tmp/checksums || die "pg_checksums: $(cat /tmp/checksums)"
out rows "$said $transactions"
umount /mnt
consistent
stop_server
out done yes
