//! Workers that write stripes for the tasks that got the requests, as in older designs: see
//! [`ablation`](crate::ablation).

use std::{pin::Pin, rc::Rc, sync::Arc};

use pinstripe_block::Client;
use pinstripe_runtime::{Slice, shard};

use crate::{
    error::IoError,
    geometry::StripeId,
    io::{fan_out::FanOut, parity::ParityVolume, volume::Volume},
    shared::{Answer, Shared},
    stripe::image::Piece,
    units::to_usize,
};

/// Starts a worker on each shard, if the array is to have them. They end with the array.
pub(crate) fn start(shared: &Arc<Shared>) {
    if shared.pool.is_none() {
        return;
    }
    for handle in &shared.shards {
        let shared = Arc::clone(shared);
        handle.send(move || shard::spawn(work(shared)));
    }
}

/// Begins what is on the list. What was begun goes on by itself, so a worker waits for no device.
async fn work(shared: Arc<Shared>) {
    let volume = Volume::new(Arc::clone(&shared));
    let (Some(volume), Some(pool)) = (volume.parity(), &shared.pool) else { return };
    loop {
        let tasks = pool.take(volume.shard).await;
        if tasks.is_empty() {
            return;
        }
        for task in tasks {
            let volume = Rc::clone(volume);
            let ((stripe, piece), begun) = task.begin();
            shard::spawn(
                async move { begun.end(volume.write_stripe(stripe, piece, &Client::default()).await) },
            );
        }
        // What was begun comes first: other workers may take the rest.
        shard::yield_now().await;
    }
}

impl ParityVolume {
    /// Has workers write a request, stripe by stripe.
    #[cold]
    pub(crate) fn write_by_workers<'s>(
        self: &'s Rc<Self>,
        offset: u64,
        data: Slice,
        fua: bool,
    ) -> Pin<Box<dyn Future<Output = Answer> + 's>> {
        Box::pin(self.hand_off_stripes(offset, data, fua))
    }

    async fn hand_off_stripes(self: &Rc<Self>, offset: u64, data: Slice, fua: bool) -> Answer {
        let (stripe, start) = self.geometry.locate(offset);
        if data.len() as u64 <= (self.geometry.stripe_bytes() - start).into() {
            return self.hand_off(stripe, Piece { start, data, fua }).await;
        }
        let all = FanOut::new();
        for part in self.geometry.stripe_pieces(offset, data.len() as u64)? {
            let data = data.slice(to_usize(part.request_offset), part.length as usize);
            let piece = Piece { start: part.start, data, fua };
            let (branch, volume) = (all.branch(), Rc::clone(self));
            shard::spawn(async move { branch.finish(volume.hand_off(part.stripe, piece).await) });
        }
        all.wait().await
    }

    async fn hand_off(&self, stripe: StripeId, piece: Piece) -> Answer {
        let Some(pool) = &self.shared.pool else { unreachable!("there are workers") };
        pool.hand_off(self.shard, (stripe, piece)).await.unwrap_or(Err(IoError::Stopping))
    }
}
