# Under load: processes die, a disk is pulled, the package is upgraded. Then it is removed.

server=$(main_pid pinstripe@data)
# What is run for an alert has the rights that the daemon has not: to write, and those of set-group-ID programs.
cat >/usr/local/sbin/tell <<'TELL'
#!/bin/sh
echo "$1 $2 $3 $(grep NoNewPrivs /proc/self/status | cut -f 2)" >>/var/log/told
TELL
# A mail program that calls one that is set-group-ID, as those do that have a spool. (The kernel heeds that of no script.)
install -m 2755 -g mail /usr/bin/id /usr/local/sbin/spool
cat >/usr/sbin/sendmail <<'SENDMAIL'
#!/bin/sh
{ echo "sendmail $* in the group $(/usr/local/sbin/spool -gn)"; cat; } >>/var/log/mailed
SENDMAIL
chmod 755 /usr/local/sbin/tell /usr/sbin/sendmail
# What is posted to it is one line of a file.
perl -MIO::Socket::INET -e '
    my $hook = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8099, Listen => 5, ReuseAddr => 1) or die;
    while (my $client = $hook->accept) {
        my ($length, $body) = (0, "");
        while (<$client>) { $length = $1 if /^content-length: *(\d+)/i; last if /^\r?$/ }
        read $client, $body, $length;
        open my $file, ">>", "/var/log/hooked"; print $file "$body\n"; close $file;
        print $client "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"; close $client;
    }' &
hook=$!
mkdir -p /etc/pinstripe/conf.d
cat >/etc/pinstripe/conf.d/watch.toml <<'TOML'
[alerts]
program = "/usr/local/sbin/tell"
mail = "root"
webhook = "http://127.0.0.1:8099/hook"

[metrics]
listen = "127.0.0.1:9660"

[web]
listen = "127.0.0.1:9661"
TOML
systemctl enable --now pinstripe-daemon || die "start the daemon"
start_load

say "kill -9 of the daemon"
daemon=$(main_pid pinstripe-daemon)
kill -KILL "$daemon"
progress "without the daemon"
until_true 60 "the daemon is not started again" is_another pinstripe-daemon "$daemon"
[ "$(main_pid pinstripe@data)" = "$server" ] || die "the server went with the daemon"
until_true 60 "the new daemon knows no array" pinstripe status
progress "after the daemon's death"
no_errors
out step daemon-killed

say "kill -9 of the server"
for round in 1 2 3; do
    server=$(main_pid pinstripe@data)
    kill -KILL "$server"
    until_true 90 "the server is not started again, round $round" is_another pinstripe@data "$server"
    progress "after the server's death, round $round"
done
end_load
say "kill -9 of a server whose file system rests, with writes that are only in memory"
server=$(main_pid pinstripe@net)
cp -a /usr/bin/perl /srv/net/idle || die "write"
kill -KILL "$server"
until_true 90 "the server is not started again at rest" is_another pinstripe@net "$server"
sync -f /srv/net || die "sync"
cmp /usr/bin/perl /srv/net/idle || die "the file differs"
no_errors
until_true 120 "a member was lost with the server" in_sync data 4
only_md0
out step server-killed

say "a disk is pulled"
start_load
out pull d1
# shellcheck disable=SC2046
until_true 60 "d1 was not pulled" [ ! -e $(by_id d1) ]
until_true 60 "that d1 is gone is not seen" missed
progress "degraded"
until_true 90 "status does not show it" degraded
until_true 60 "the program of alerts is not run" \
    grep -qx 'raised Degraded data 0' /var/log/told
until_true 60 "no mail is sent" grep -q '^Subject: pinstripe on debian: Degraded of data$' /var/log/mailed
grep -qx 'sendmail -i -t in the group mail' /var/log/mailed || die "the mail program: $(cat /var/log/mailed)"
until_true 60 "nothing is posted" grep -q '"alert":"Degraded"' /var/log/hooked
curl -sSf http://127.0.0.1:9660/healthz >/tmp/web || die "it says of itself: $(cat /tmp/web)"
curl -sSf http://127.0.0.1:9660/metrics >/tmp/web || die "no metrics"
grep '^pinstripe_array_degraded{.*} 1$' /tmp/web | grep -q '"data"' || die "the metrics: $(grep degraded /tmp/web)"
curl -sSf http://127.0.0.1:9661/login >/tmp/web || die "no page: $(journalctl -u pinstripe-daemon -n 20 --no-pager)"
only_md0
no_errors
out step pulled

# taken_back: the journal has it, a while after it was said.
taken_back() {
    journalctl --boot --unit pinstripe@data | grep 'is back, and what it missed'
}

say "it is put back"
out put-back d1
until_true 180 "d1 does not come back by itself" in_sync data 4
until_true 60 "it was not taken back by the bitmap" taken_back
progress "whole again"
end_load
until_true 60 "that it is over is not told" grep -qx 'cleared Degraded data 0' /var/log/told
say "a test alert comes by all ways"
pinstripe daemon --test-alert --alerts-by /run/pinstripe-alert.sock || die "the test alert"
for place in told mailed hooked; do
    grep -q Test /var/log/$place || die "the test alert is not in $place: $(cat /var/log/$place)"
done
kill $hook
rm /usr/local/sbin/tell /usr/local/sbin/spool /usr/sbin/sendmail /var/log/told /var/log/mailed /var/log/hooked
rm /etc/pinstripe/conf.d/watch.toml
pinstripe reload || die "reload"
pinstripe check data || die "parity does not match"
only_md0
out step put-back

say "what is stopped stays stopped, until it is wanted"
systemctl stop pinstripe@net || die "stop"
! mountpoint -q /srv/net || die "it is still mounted"
# udev looks at members when they are closed.
udevadm settle
sleep 3
[ "$(systemctl is-active pinstripe@net)" = inactive ] || die "it is started again: $(systemctl is-active pinstripe@net)"
only_md0
systemctl start srv-net.mount || die "the mount does not have it started"
no_errors
out step stopped
. /job/kinds.sh
. /job/hung.sh
. /job/upgrade.sh
