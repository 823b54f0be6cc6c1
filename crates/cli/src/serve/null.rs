//! `pinstripe ublk null`: a ublk device without an array. Its requests go the way of an array's up to the
//! block service, which answers at once and keeps nothing. No array behind the driver can be faster, so
//! `cargo xtask bench` measures ours beside it.

use pinstripe_block::{BlockService, ServiceError};
use pinstripe_export::ublk::{Limits, parameters};
use pinstripe_runtime::{
    Buffer, Slice,
    uring::{self, Context, RuntimeConfig, blocking},
};

use super::{
    journal::ServerLog,
    ublk::{self, DEPTH, Prepared},
};
use crate::{
    command_line::{LogOptions, UblkNullArguments},
    ending::Order,
    failure::Failure,
    log,
    ublk::{block_path, device_info},
};

/// The number by which such a device is known from an array's. Arrays have theirs from a uuid.
const MARK: u64 = u64::from_be_bytes(*b"nothing!");

/// Serves until a signal comes.
pub fn run(arguments: &UblkNullArguments) -> Result<(), Failure> {
    let config =
        RuntimeConfig { termination_signals: true, ..RuntimeConfig::unpinned(arguments.shards.into()) };
    let (id, null) = (arguments.id, Null { bytes: arguments.size.0 });
    uring::run(&config, move |context| serve(context, id, null))?
}

async fn serve(context: Context, id: Option<u32>, null: Null) -> Result<(), Failure> {
    let (order, shards) = (Order::new(), context.shards());
    log::begin(LogOptions::default(), "null")?;
    log::describe("null", &[]);
    let journal = ServerLog::new(false, "null")?;
    let (parameters, limits, count) = (parameters(&null), Limits::new(&null), shards.len());
    let made = blocking(move || {
        let new = |features| device_info(count, DEPTH, limits.request_bytes_max, features, MARK);
        ublk::prepare(id, MARK, parameters, new)
    });
    let Prepared { info, device, taken_over } = made.await?;
    let begun = async {
        ublk::open_queues(device, &info, shards, &journal, move || null).await?;
        blocking(move || ublk::begin(info.device, taken_over)).await
    };
    let begun = begun.await;
    if begun.is_ok() {
        journal.print(format!("ready: {}", block_path(info.device).display()));
        order.await;
    }
    if let Some(users) = ublk::end(info.device, shards, &journal).await {
        ublk::delete(info.device, &users, &journal).await;
    }
    blocking(move || journal.flush()).await;
    begun
}

/// The block service that does nothing.
#[derive(Clone, Copy)]
struct Null {
    bytes: u64,
}

impl BlockService for Null {
    fn size_bytes(&self) -> u64 {
        self.bytes / u64::from(self.block_size()) * u64::from(self.block_size())
    }
    fn block_size(&self) -> u32 {
        512
    }
    fn preferred_block(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    /// The buffer is given as it is: what it holds came from this device's own writers.
    async fn read(&self, _: u64, buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        (Ok(()), buffer)
    }
    async fn write(&self, _: u64, _: Slice, _: bool) -> Result<(), ServiceError> {
        Ok(())
    }
    async fn flush(&self) -> Result<(), ServiceError> {
        Ok(())
    }
    async fn discard(&self, _: u64, _: u64, _: bool) -> Result<(), ServiceError> {
        Ok(())
    }
    async fn write_zeroes(&self, _: u64, _: u64, _: bool, _: bool) -> Result<(), ServiceError> {
        Ok(())
    }
}
