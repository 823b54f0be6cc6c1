//! The partial parity log of RAID5 (md-format.md section 8): for each run of rows, the XOR of the data that
//! is *not* written, on the member that holds the stripe's parity, durable before data and parity change.
//!
//! MD replays the newest record of each member and no other. So a record may follow another only when
//! everything that the other covers is on the members for good: one record is live per member, all that comes
//! meanwhile gathers in the next one ([`queue`](super::queue)), and the writes that a record covers are
//! forced to the medium (C4). The kernel flushes every member after each record for the same reason.
//!
//! An entry covers whole rows of 4 KiB, in which the same consecutive columns are written (C17). What a batch
//! writes of a row is filled up with what the row has, and a batch with other rows is written piece by piece
//! ([`has_entry_for_every_run`]). A row in which sectors of two columns are written, but not the same ones,
//! is no such row for us, though MD would log it: should one of the two members be lost with the crash, the
//! unwritten sectors of its page would be made of a mixture.
//!
//! | crash | what recovery does |
//! |---|---|
//! | before the record is whole | the header's or the entry's checksum is wrong: skipped; nothing of its rows had changed |
//! | between the record and the last write it covers | parity = partial parity + what the written columns hold now: whatever that is, data that was not written can be made of it |
//! | as before, and a member is lost that holds data that was not written | the same, and then it is made of parity |
//! | as before, and the lost member holds data that was being written | left alone: those sectors were in flight (C19), all others of the row are there |
//! | as before, and the lost member holds parity | nothing to do |
//! | after the last write, before the next record | the same parity again |
//! | in recovery | the superblocks are still dirty and the record is still there: again |

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use pinstripe_md::{
    identity::Uuid,
    ppl::{ENTRIES_MAX, HEADER_BYTES, PplEntry, PplHeader, signature},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, Slice, shard};

use super::{
    Batch, LogError, LogGate, Logged,
    queue::{self, Lead, Queues, RecordEncoder, Rules},
};
use crate::{
    consistency::{LogDevice, LogView},
    error::IoError,
    geometry::{MEMBERS_MAX, MemberSlot, StripeId},
    members::LogArea,
    mutants::{Mutant, active, in_32_bits},
    plan::{Method, Run},
    stripe::parity_cache::PAGE_BYTES,
    units::{to_u32, to_usize},
};

/// The log of a RAID5 array in service.
pub struct Ppl {
    set_uuid: Uuid,
    generation: AtomicU64,
    gate: LogGate,
    queues: Queues<Vec<Part>>,
}

/// An entry with its partial parity. Checksum and lengths of parity are filled in by the leader.
#[derive(Clone)]
pub(crate) struct Part {
    entry: PplEntry,
    parity: Option<Slice>,
}

/// Keeps a batch in the log until it is dropped.
pub(crate) type LogGuard = queue::LogGuard<Vec<Part>>;

impl RecordEncoder for Ppl {
    type Item = Vec<Part>;

    fn record(&self, lead: &Lead<Vec<Part>>) -> Result<Slice, DeviceError> {
        let mut record = shard::buffer(to_usize(lead.length));
        let mut at = HEADER_BYTES;
        let mut entries = Vec::new();
        for part in lead.items.iter().flatten() {
            let mut entry = part.entry;
            if let Some(parity) = &part.parity {
                record[at..at + parity.len()].copy_from_slice(parity);
                at += parity.len();
                entry.seal(parity);
            }
            entries.push(entry);
        }
        let generation = self.generation.fetch_add(1, Ordering::SeqCst);
        let header = PplHeader { signature: signature(self.set_uuid), generation, entries };
        let header = header.encode().map_err(|_| DeviceError::of(DeviceErrorKind::Invalid))?;
        record[..HEADER_BYTES].copy_from_slice(&header);
        Ok(record.freeze())
    }
}

impl Ppl {
    /// The log of an array. Its next record gets `generation`.
    pub(crate) fn new(set_uuid: Uuid, generation: u64) -> Self {
        let rules = Rules {
            exclusive: !active(Mutant::LogRecordForgotten),
            entries_max: ENTRIES_MAX,
            start: 0,
            header_bytes: HEADER_BYTES as u64,
            entry_bytes: 0,
            block: HEADER_BYTES as u64,
            gap: None,
            // Linux looks for another header while there is room for more than one, and takes where it ends
            // for the newest's place.
            behind: 2 * HEADER_BYTES as u64,
            gather_bytes: 0,
        };
        Self {
            set_uuid,
            generation: AtomicU64::new(generation),
            gate: LogGate::default(),
            queues: Queues::new(rules),
        }
    }

    pub(crate) fn gate(&self) -> &LogGate {
        &self.gate
    }

    /// Has every task that waits look again.
    pub(crate) fn wake(&self) {
        self.gate.wake();
        self.queues.wake();
    }

    /// Makes a batch known, durably.
    pub(crate) async fn write_ahead(self: &Arc<Self>, batch: &Batch<'_>) -> Result<Logged, LogError> {
        let map = batch.view.geometry().slots(batch.stripe);
        assert!(has_entry_for_every_run(batch.plan.runs()), "C17: a batch is cut before it is planned");
        let parts: Vec<Part> = batch
            .plan
            .runs()
            .iter()
            .zip(batch.parity)
            .filter_map(|(run, [p, _])| part(batch, run, p.as_ref()))
            .collect();
        self.append(batch.view, map.p_slot(), parts).await
    }

    /// Makes known that a stripe is written whole.
    pub(crate) async fn write_whole(
        self: &Arc<Self>,
        view: &dyn LogView,
        stripe: StripeId,
    ) -> Result<Logged, LogError> {
        let geometry = view.geometry();
        let map = geometry.slots(stripe);
        let entry = PplEntry {
            data_sector: Sector(geometry.array_offset(stripe, 0) / SECTOR_BYTES),
            parity_bytes: 0,
            data_bytes: geometry.stripe_bytes(),
            parity_slot: u32::from(map.p_slot().0),
            checksum: 0,
        };
        self.append(view, map.p_slot(), vec![Part { entry, parity: None }]).await
    }

    async fn append(
        self: &Arc<Self>,
        view: &dyn LogView,
        slot: MemberSlot,
        parts: Vec<Part>,
    ) -> Result<Logged, LogError> {
        // Without parity nothing can be torn.
        let [Some(LogDevice { member, .. }), _] = view.devices(slot) else { return Ok(Logged::Nothing) };
        if parts.is_empty() {
            return Ok(Logged::Nothing);
        }
        let bytes: u64 = parts.iter().filter_map(|part| part.parity.as_ref()).map(|p| p.len() as u64).sum();
        let room = member.log_area().map_or(0, |area| area.length.saturating_sub(HEADER_BYTES as u64));
        if parts.len() > ENTRIES_MAX || bytes > room {
            // Never: batches are cut to what fits, and arrays with too small an area are read-only.
            return Err(LogError::Fatal(IoError::Failed));
        }
        if !self.gate.pass(|| view.is_over()).await {
            return Err(LogError::Moved);
        }
        let part = queue::Part { entries: parts.len(), item: parts, bytes };
        let kept = self.queues.append(&**self, view, vec![(slot, vec![part])]).await?;
        Ok(Logged::Ppl(kept))
    }

    /// Makes the log on a device one that begins now: whatever stood there counts no more, and with `active`
    /// recovery knows that everything from here on is in it, though nothing has been written yet.
    pub(crate) async fn begin(
        &self,
        device: &dyn Device,
        area: LogArea,
        slot: MemberSlot,
        active: bool,
    ) -> Result<(), DeviceError> {
        zero(device, area).await?;
        let mut header = PplHeader::empty(self.set_uuid, 0);
        if active {
            header.generation = self.generation.fetch_add(1, Ordering::SeqCst);
            header.entries.push(PplEntry {
                data_sector: Sector(0),
                parity_bytes: 0,
                data_bytes: 0,
                parity_slot: u32::from(slot.0),
                checksum: 0,
            });
        }
        write_header(device, area, &header).await
    }

    /// Makes the log on a device one that says nothing.
    pub(crate) async fn empty(&self, device: &dyn Device, area: LogArea) -> Result<(), DeviceError> {
        write_header(device, area, &PplHeader::empty(self.set_uuid, 0)).await
    }
}

/// Zeroes an area, in pieces.
pub(crate) async fn zero(device: &dyn Device, area: LogArea) -> Result<(), DeviceError> {
    const PIECE: u64 = 256 << 10;
    let end = area.offset + area.length;
    let mut at = area.offset;
    while at < end {
        let length = PIECE.min(end - at);
        let zeroes = shard::zeroed(to_usize(length)).freeze();
        device.write(at, zeroes, true).await.result?;
        at += length;
    }
    Ok(())
}

async fn write_header(device: &dyn Device, area: LogArea, header: &PplHeader) -> Result<(), DeviceError> {
    let bytes = header.encode().map_err(|_| DeviceError::of(DeviceErrorKind::Invalid))?;
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(&bytes);
    device.write(area.offset, buffer.freeze(), true).await.result.map(|_| ())
}

/// The entry of a run; `None` where no parity is written.
fn part(batch: &Batch<'_>, run: &Run, p: Option<&Slice>) -> Option<Part> {
    let geometry = batch.view.geometry();
    let map = geometry.slots(batch.stripe);
    let p = p?;
    let first = run.written.iter().next()?;
    let within = to_u32(first) * geometry.chunk_bytes() + run.start;
    let columns = to_u32(run.written.len());
    let wrong = if active(Mutant::LogWrongRange) { u64::from(PAGE_BYTES) / SECTOR_BYTES } else { 0 };
    let at = in_32_bits(Mutant::LogPlaceWraps, geometry.array_offset(batch.stripe, within));
    let entry = PplEntry {
        data_sector: Sector(at / SECTOR_BYTES + wrong),
        parity_bytes: 0,
        data_bytes: run.length() * columns,
        parity_slot: u32::from(map.p_slot().0),
        checksum: 0,
    };
    let parity = (run.method != Method::Full).then(|| partial_parity(batch, run, p));
    Some(Part { entry, parity })
}

/// The new parity without the columns that are written: the XOR of those that are not.
pub(crate) fn partial_parity(batch: &Batch<'_>, run: &Run, p: &[u8]) -> Slice {
    let mut sources: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
    sources[0] = p;
    let mut count = 1;
    for (source, column) in sources[1..].iter_mut().zip(run.written) {
        *source = run.new_bytes(batch.image, column);
        count += 1;
    }
    let mut partial = shard::buffer(p.len());
    pinstripe_parity::kernel().xor(&mut partial, &sources[..count]);
    partial.freeze()
}

/// Whether each run fits an entry, and all of them a record.
fn has_entry_for_every_run(runs: &[Run]) -> bool {
    let consecutive = |run: &Run| {
        let (first, last) = (run.written.iter().next().unwrap_or(0), run.written.iter().last().unwrap_or(0));
        last - first + 1 == run.written.len()
    };
    let whole = |run: &Run| run.start.is_multiple_of(PAGE_BYTES) && run.end.is_multiple_of(PAGE_BYTES);
    runs.len() <= ENTRIES_MAX && runs.iter().all(|run| consecutive(run) && whole(run))
}
