//! The double-parity log of RAID6 in service: before a stripe write changes a member, what the unwritten
//! columns contribute to P and to Q is durable on the members that have the stripe's P and Q. The format and
//! the crash cases are in docs/formats.md and [`pinstripe_md::double_parity_log`].
//!
//! Many records are live at a time. A stripe write waits for the record that is just being written, and then
//! shares the next one with all stripe writes that came meanwhile. It waits for the members of other stripe
//! writes only where the area has no room. What a record covers is forced to the medium, so that a batch that
//! is released is over for good (C4): its entry may be overwritten, and if it is still found, it gives the
//! parity that is there. Of several entries for a row the newest counts: that it was logged at all says that
//! those before it are over.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use pinstripe_md::{
    double_parity_log::{
        ANCHOR_BYTES, ENTRIES_MAX, ENTRY_BYTES, Entry, HEADER_BYTES, Identity, Parity, gap_bytes,
        header_bytes,
    },
    identity::Uuid,
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, Slice, shard};

use super::{
    Batch, LogError, LogGate, Logged,
    ppl::partial_parity,
    queue::{self, Lead, Queues, RecordEncoder, Rules},
};
use crate::{
    consistency::{LogDevice, LogView},
    error::IoError,
    geometry::{MemberSlot, Set64, StripeId},
    members::LogArea,
    mutants::{Mutant, active},
    plan::{Method, Run},
    stripe::decode::exponent,
};

/// How many times longer than its header the payload of a record should be.
const GATHER_HEADERS: u64 = 8;

/// The log of a RAID6 array in service.
pub struct DoubleParityLog {
    set_uuid: Uuid,
    incarnation: AtomicU64,
    batches: AtomicU64,
    sequence: AtomicU64,
    gate: LogGate,
    rules: Rules,
    queues: Queues<Part>,
}

/// An entry with its payload. The leader fills in the payload's length and checksum.
#[derive(Clone)]
pub(crate) struct Part {
    entry: Entry,
    payload: Option<Slice>,
}

/// Keeps a batch in the log until it is dropped.
pub(crate) type LogGuard = queue::LogGuard<Part>;

impl RecordEncoder for DoubleParityLog {
    type Item = Part;

    fn record(&self, lead: &Lead<Part>) -> Result<Slice, DeviceError> {
        let invalid = DeviceError::of(DeviceErrorKind::Invalid);
        let mut record = shard::buffer(usize::try_from(lead.length).map_err(|_| invalid)?);
        let mut at = usize::try_from(self.rules.header(lead.items.len())).map_err(|_| invalid)?;
        let mut entries = Vec::with_capacity(lead.items.len());
        for part in &lead.items {
            let mut entry = part.entry;
            if let Some(payload) = &part.payload {
                record[at..at + payload.len()].copy_from_slice(payload);
                at += payload.len();
                entry.seal(payload);
            }
            entries.push(entry);
        }
        record[at..].fill(0);
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst);
        let header = self.identity().encode_header(sequence, &entries, lead.length, self.rules.block);
        let header = header.map_err(|_| invalid)?;
        record[..header.len()].copy_from_slice(&header);
        Ok(record.freeze())
    }
}

impl DoubleParityLog {
    /// The log of an array with logical blocks of `block` bytes.
    pub(crate) fn new(set_uuid: Uuid, block: u64) -> Self {
        let rules = Rules {
            exclusive: false,
            entries_max: ENTRIES_MAX,
            start: ANCHOR_BYTES as u64,
            header_bytes: HEADER_BYTES as u64,
            entry_bytes: ENTRY_BYTES as u64,
            block,
            gap: Some(gap_bytes),
            behind: 0,
            gather_bytes: GATHER_HEADERS * header_bytes(1, block),
        };
        Self {
            set_uuid,
            incarnation: AtomicU64::new(0),
            batches: AtomicU64::new(1),
            sequence: AtomicU64::new(1),
            gate: LogGate::default(),
            rules,
            queues: Queues::new(rules),
        }
    }

    pub(crate) fn gate(&self) -> &LogGate {
        &self.gate
    }

    /// What the log is called from now on, so that nothing from before is taken for a part of it.
    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::SeqCst);
    }

    fn identity(&self) -> Identity {
        Identity { set_uuid: self.set_uuid, incarnation: self.incarnation.load(Ordering::SeqCst) }
    }

    /// Begins the log on a device.
    pub(crate) async fn begin(&self, device: &dyn Device, area: LogArea) -> Result<(), DeviceError> {
        let anchor = self.identity().anchor();
        let mut buffer = shard::buffer(anchor.len());
        buffer.copy_from_slice(&anchor);
        device.write(area.offset, buffer.freeze(), true).await.result.map(|_| ())
    }

    /// Has every task that waits look again.
    pub(crate) fn wake(&self) {
        self.gate.wake();
        self.queues.wake();
    }

    /// Whether the logs of a stripe take what a batch of so many parts has to say.
    pub(crate) fn has_room_for(&self, view: &dyn LogView, stripe: StripeId, parts: usize) -> bool {
        let (map, block) = (view.geometry().slots(stripe), self.rules.block);
        let chunk = u64::from(view.geometry().chunk_bytes());
        // A part begins one run and ends one.
        let runs = (2 * parts as u64 + 1).min(chunk / block);
        let devices = map.parity_slots().flat_map(|slot| view.devices(slot)).flatten();
        let mut areas = devices.filter_map(|device| device.member.log_area());
        areas.all(|area| takes_runs(runs, chunk, area, block))
    }

    /// Makes a batch known, durably.
    pub(crate) async fn write_ahead(self: &Arc<Self>, batch: &Batch<'_>) -> Result<Logged, LogError> {
        let runs = batch.plan.runs().iter().zip(batch.parity);
        let runs = runs.map(|(run, parity)| {
            let payload = |which: Parity, new: &Option<Slice>| {
                new.as_ref().filter(|_| run.method != Method::Full).map(|new| match which {
                    Parity::P => partial_parity(batch, run, new),
                    Parity::Q => partial_q(batch, run, new),
                })
            };
            (
                run.start,
                run.length(),
                run.written,
                [payload(Parity::P, &parity[0]), payload(Parity::Q, &parity[1])],
            )
        });
        self.append(batch.view, batch.stripe, runs.collect()).await
    }

    /// Makes known that these rows of a stripe are written whole.
    pub(crate) async fn write_rows(
        self: &Arc<Self>,
        view: &dyn LogView,
        stripe: StripeId,
        rows: &[(u32, u32)],
    ) -> Result<Logged, LogError> {
        let whole = Set64::below(view.geometry().columns());
        let runs = rows.iter().map(|(from, to)| (*from, to - from, whole, [None, None]));
        self.append(view, stripe, runs.collect()).await
    }

    async fn append(
        self: &Arc<Self>,
        view: &dyn LogView,
        stripe: StripeId,
        runs: Vec<(u32, u32, Set64, [Option<Slice>; 2])>,
    ) -> Result<Logged, LogError> {
        let map = view.geometry().slots(stripe);
        let places = [(Parity::P, Some(map.p_slot())), (Parity::Q, map.q_slot())];
        let places: Vec<(Parity, MemberSlot)> = places
            .into_iter()
            .filter_map(|(parity, slot)| {
                Some((parity, slot.filter(|slot| view.devices(*slot)[0].is_some())?))
            })
            .collect();
        // Without parity nothing can be torn.
        if places.is_empty() || runs.is_empty() {
            return Ok(Logged::Nothing);
        }
        if !self.gate.pass(|| view.is_over()).await {
            return Err(LogError::Moved);
        }
        let number = self.batches.fetch_add(1, Ordering::SeqCst);
        let copies = places.iter().fold(0, |bits, (parity, _)| bits | parity.bit());
        // Replay puts the two copies of a piece together: they are cut alike, however long the areas are.
        let devices = places.iter().flat_map(|(_, slot)| view.devices(*slot)).flatten();
        let areas = devices.map(|device| device.member.log_area());
        let piece = areas.map(|area| self.piece_max(area)).min().unwrap_or(512);
        let mut made = Vec::new();
        for (parity, slot) in places {
            let [Some(LogDevice { member, .. }), _] = view.devices(slot) else { continue };
            let mut parts = Vec::new();
            for (start, length, written, payloads) in &runs {
                let payload = payloads[usize::from(parity == Parity::Q)].as_ref();
                let entry = Entry {
                    batch: number,
                    stripe: stripe.0,
                    written: written.0,
                    start: *start,
                    length: *length,
                    parity,
                    copies,
                    payload_bytes: 0,
                    payload_checksum: 0,
                };
                cut(entry, payload, piece, &mut parts);
            }
            let total: u64 = parts.iter().map(|part| part.bytes + self.rules.header(1)).sum();
            if member.log_area().is_none_or(|area| total > room(area)) {
                // Never: a log is used only where one column fits it, and a batch that may not fit is cut
                // into columns.
                return Err(LogError::Fatal(IoError::Failed));
            }
            made.push((slot, parts));
        }
        Ok(Logged::DoubleParity(self.queues.append(&**self, view, made).await?))
    }

    /// The longest payload of an entry, so that a record with it is no longer than the gap.
    fn piece_max(&self, area: Option<LogArea>) -> u32 {
        let gap = area.map_or(0, |area| gap_bytes(area.length, self.rules.block));
        u32::try_from(gap.saturating_sub(self.rules.header(1))).unwrap_or(u32::MAX).max(512)
    }
}

/// What one batch may need of an area: the rest is kept free, or lost where records don't fit the end.
fn room(area: LogArea) -> u64 {
    area.length.saturating_sub(ANCHOR_BYTES as u64) / 8 * 5
}

/// Whether what a stripe write of one column may log fits an area: what writes several, and doesn't fit, is
/// cut into columns.
pub(crate) fn takes_chunks_of(chunk_bytes: u64, area: LogArea, block: u64) -> bool {
    // Every other sector of the column may be a run of its own; what is between is not written.
    takes_runs(chunk_bytes / (2 * block), chunk_bytes, area, block)
}

/// Whether a chunk in so many runs fits an area: in pieces with a header each.
fn takes_runs(runs: u64, chunk_bytes: u64, area: LogArea, block: u64) -> bool {
    let header = (HEADER_BYTES as u64 + ENTRY_BYTES as u64).next_multiple_of(block);
    let piece = gap_bytes(area.length, block).saturating_sub(header);
    let pieces = if piece == 0 { u64::MAX } else { chunk_bytes.div_ceil(piece).saturating_add(runs) };
    pieces.saturating_mul(header).saturating_add(chunk_bytes) <= room(area)
}

/// Cuts an entry into pieces of at most `piece` bytes of payload.
fn cut(entry: Entry, payload: Option<&Slice>, piece: u32, parts: &mut Vec<queue::Part<Part>>) {
    let Some(payload) = payload else {
        parts.push(queue::Part { item: Part { entry, payload: None }, entries: 1, bytes: 0 });
        return;
    };
    let mut at = 0;
    while at < entry.length {
        let length = piece.min(entry.length - at);
        let slice = payload.slice(at as usize, length as usize);
        let wrong = if active(Mutant::LogWrongRange) { 512 } else { 0 };
        let entry = Entry { start: entry.start + at + wrong, length, ..entry };
        let item = Part { entry, payload: Some(slice) };
        parts.push(queue::Part { item, entries: 1, bytes: length.into() });
        at += length;
    }
}

/// The new Q without the columns that are written.
fn partial_q(batch: &Batch<'_>, run: &Run, q: &[u8]) -> Slice {
    let map = batch.view.geometry().slots(batch.stripe);
    let mut partial = shard::buffer(q.len());
    partial.copy_from_slice(q);
    for column in run.written {
        let power = if active(Mutant::LogWrongCoefficient) { 0 } else { exponent(map, column) };
        pinstripe_parity::kernel().accumulate_q(&mut partial, run.new_bytes(batch.image, column), power);
    }
    partial.freeze()
}
