# Our server in the guest over disks that forget what was not flushed; the host kills the machine at any moment. $DEVICES
# are served; `pinstripe $CHANGE` adds or replaces one; $WRITERS write, over the server's socket or (VIA=kernel) over /dev/nbd0.
. /job/serve.sh
name=$NAME
out starting
# shellcheck disable=SC2086
serve $DEVICES
out serving
if [ -n "$CHANGE" ]; then
    # shellcheck disable=SC2086
    pinstripe $CHANGE || die "$name: $CHANGE fails"
    out changing
fi
if [ -n "$WRITERS" ]; then
    store=/run/array.nbd
    [ "$VIA" != kernel ] || store=/dev/nbd0
    # shellcheck disable=SC2086
    xtask soak guest $store $WRITERS >&3 || die "$name: a writer failed: $(pinstripe detail /run/array.control)"
fi
sleep 60
die "the machine was not killed"
