//! Commands of I/O queues, carried out by the block services.

use std::sync::atomic::Ordering;

use pinstripe_block::pieces::piece_end;
use pinstripe_block::{BlockService, ServiceError};
use pinstripe_runtime::{Buffer, block_bytes, shard};
use zerocopy::FromBytes;

use super::limits::TRANSFER_BYTES_MAX;
use super::reservation::Access;
use super::session::{HostData, ReadBuffer, Session};
use super::subsystem::{Admitted, Namespace};
use crate::mutants::{Mutant, active};
use crate::wire::command::{
    Command, DATASET_DEALLOCATE, DATASET_RANGES_MAX, DEALLOCATE, DataPlace, DatasetRange, NAMESPACE_ALL, nvm,
};
use crate::wire::reservation::{Keys, action};
use crate::wire::status::Status;

/// Most bytes of data of a command that isn't a read, write or compare.
const LIST_BYTES_MAX: u32 = 4096;

/// Bytes of a namespace.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub offset: u64,
    pub length: u64,
}

/// Carries out a command and answers it.
pub(super) async fn execute<S: BlockService>(
    session: &Session<S>,
    command: &Command,
    capsule: Option<Buffer>,
) {
    if super::offload::is_operation(command.opcode)
        && let Some(server) = session.inner.subsystem.offload()
    {
        // Boxed: its state is larger than that of all others, which every command's task would have to carry.
        return Box::pin(super::carry::execute(session, server, command, capsule)).await;
    }
    let result = match command.opcode {
        nvm::READ => return read(session, command).await,
        nvm::WRITE => write(session, command, capsule).await,
        nvm::COMPARE => compare(session, command, capsule).await,
        nvm::FLUSH => flush(session, command).await,
        nvm::WRITE_ZEROES => write_zeroes(session, command).await,
        nvm::DATASET_MANAGEMENT => dataset_management(session, command, capsule).await,
        nvm::RESERVATION_REPORT => return reservation_report(session, command).await,
        nvm::RESERVATION_REGISTER | nvm::RESERVATION_ACQUIRE | nvm::RESERVATION_RELEASE => {
            reservation(session, command, capsule).await
        }
        _ => Err(Status::INVALID_OPCODE),
    };
    match result {
        Ok(Done::Answered) => session.complete(command, Ok(0)),
        Ok(Done::ConnectionLost) => {}
        Err(status) => session.complete(command, Err(status)),
    }
}

/// How a command ended that didn't fail.
enum Done {
    Answered,
    /// The connection ended before the command's data came: no answer can be sent. Or another process is to
    /// carry it out.
    ConnectionLost,
}

pub(super) fn namespace<'a, S: BlockService>(
    session: &'a Session<S>,
    command: &Command,
) -> Result<(&'a Namespace, &'a S), Status> {
    let number = command.namespace.get();
    let namespace = session.inner.subsystem.namespace(number).ok_or(Status::INVALID_NAMESPACE)?;
    let index = usize::try_from(number).unwrap_or(0).wrapping_sub(1);
    let service =
        session.inner.services.get(index).and_then(Option::as_ref).ok_or(Status::NAMESPACE_NOT_READY)?;
    Ok((namespace, service))
}

pub(super) fn range(namespace: &Namespace, start: u64, blocks: u64) -> Result<Range, Status> {
    let end = start.checked_add(blocks).filter(|end| *end <= namespace.info.blocks);
    end.ok_or(Status::LBA_OUT_OF_RANGE)?;
    let shift = namespace.info.block_shift;
    Ok(Range { offset: start << shift, length: blocks << shift })
}

/// The range of a command with data, which isn't longer than one may be.
fn data_range(namespace: &Namespace, command: &Command) -> Result<(Range, u32), Status> {
    let range = range(namespace, command.start_block(), command.block_count())?;
    let length = u32::try_from(range.length).ok().filter(|length| *length <= TRANSFER_BYTES_MAX);
    Ok((range, length.ok_or(Status::INVALID_FIELD)?))
}

pub(super) async fn admit<S>(
    session: &Session<S>,
    namespace: &Namespace,
    access: Access,
) -> Result<Admitted, Status> {
    session.controller.admit(namespace, access).await
}

pub(super) fn failed(error: ServiceError, media: Status) -> Status {
    match error {
        ServiceError::Io => media,
        ServiceError::NoSpace => Status::CAPACITY_EXCEEDED,
        ServiceError::ReadOnly => Status::WRITE_PROTECTED,
        ServiceError::Resources => Status::INTERNAL,
        ServiceError::Stopping | ServiceError::Gone => Status::NAMESPACE_NOT_READY,
    }
}

/// The same of a flush, or of a write that was to be durable. What was lost doesn't come back when the host
/// asks again, but the answer might be another one (C5). While the server stops nothing is lost.
pub(super) fn not_durable(error: ServiceError) -> Status {
    let status = failed(error, Status::WRITE_FAULT);
    if matches!(error, ServiceError::Stopping) { status } else { status.as_final() }
}

/// The status of a failed write.
pub(super) fn not_written(error: ServiceError, fua: bool) -> Status {
    if fua { not_durable(error) } else { failed(error, Status::WRITE_FAULT) }
}

async fn read<S: BlockService>(session: &Session<S>, command: &Command) {
    match try_read(session, command).await {
        Ok(Some((head, data, held))) => session.send_read(command, head, data, held),
        Ok(None) => {}
        Err(status) => session.complete(command, Err(status)),
    }
}

async fn try_read<S: BlockService>(
    session: &Session<S>,
    command: &Command,
) -> Result<Option<(Buffer, Buffer, usize)>, Status> {
    let (namespace, service) = namespace(session, command)?;
    let (range, length) = data_range(namespace, command)?;
    match command.data()? {
        DataPlace::Transport(room) if room == length => {}
        DataPlace::Transport(_) => return Err(Status::DATA_LENGTH_INVALID),
        DataPlace::Capsule(_) => return Err(Status::SGL_TYPE_INVALID),
    }
    let Some(ReadBuffer { head, data, held }) = session.read_buffer(command, length as usize).await else {
        return Ok(None);
    };
    let result = match admit(session, namespace, Access::Read).await {
        Ok(_admitted) => {
            let (result, data) = service.read(range.offset, data).await;
            result.map(|()| data).map_err(|error| failed(error, Status::UNRECOVERED_READ))
        }
        Err(status) => Err(status),
    };
    match result {
        Ok(data) => {
            let counters = &session.inner.counters;
            counters.reads.fetch_add(1, Ordering::Relaxed);
            counters.bytes_read.fetch_add(range.length, Ordering::Relaxed);
            Ok(Some((head, data, held)))
        }
        Err(status) => {
            session.link.release(held);
            Err(status)
        }
    }
}

async fn write<S: BlockService>(
    session: &Session<S>,
    command: &Command,
    capsule: Option<Buffer>,
) -> Result<Done, Status> {
    let (namespace, service) = namespace(session, command)?;
    let (range, length) = data_range(namespace, command)?;
    let Some(HostData { buffer, held }) = session.host_data(command, capsule, length).await? else {
        return Ok(Done::ConnectionLost);
    };
    let fua = command.force_unit_access();
    let result = match admit(session, namespace, Access::Write).await {
        Ok(_admitted) => {
            active(Mutant::AnsweredEarly).then(|| session.complete(command, Ok(0)));
            let written = service.write(range.offset, buffer.freeze(), fua).await;
            written.map_err(|error| not_written(error, fua))
        }
        Err(status) => Err(status),
    };
    session.link.release(held);
    result?;
    let counters = &session.inner.counters;
    counters.writes.fetch_add(1, Ordering::Relaxed);
    counters.bytes_written.fetch_add(range.length, Ordering::Relaxed);
    Ok(if active(Mutant::AnsweredEarly) { Done::ConnectionLost } else { Done::Answered })
}

async fn compare<S: BlockService>(
    session: &Session<S>,
    command: &Command,
    capsule: Option<Buffer>,
) -> Result<Done, Status> {
    let (namespace, service) = namespace(session, command)?;
    let (range, length) = data_range(namespace, command)?;
    let stored = block_bytes(length as usize);
    let Some(HostData { buffer, held }) = session.host_data_and(command, capsule, length, stored).await?
    else {
        return Ok(Done::ConnectionLost);
    };
    let result = match admit(session, namespace, Access::Read).await {
        Ok(_admitted) => {
            let (result, data) = service.read(range.offset, shard::buffer(length as usize)).await;
            let result = result.map_err(|error| failed(error, Status::UNRECOVERED_READ));
            result.and_then(|()| if *data == *buffer { Ok(()) } else { Err(Status::COMPARE_FAILURE) })
        }
        Err(status) => Err(status),
    };
    session.link.release(held);
    session.inner.counters.reads.fetch_add(1, Ordering::Relaxed);
    result.map(|()| Done::Answered)
}

async fn flush<S: BlockService>(session: &Session<S>, command: &Command) -> Result<Done, Status> {
    let targets = if command.namespace.get() == NAMESPACE_ALL {
        session.inner.subsystem.active_namespaces().collect()
    } else {
        vec![command.namespace.get()]
    };
    for number in targets {
        let one = Command { namespace: number.into(), ..*command };
        let (namespace, service) = self::namespace(session, &one)?;
        // A flush changes nothing: a namespace that takes no writes takes it.
        if !namespace.info.read_only && !active(Mutant::FlushSkipped) {
            let _admitted = admit(session, namespace, Access::Write).await?;
            service.flush().await.map_err(not_durable)?;
        }
    }
    Ok(Done::Answered)
}

async fn write_zeroes<S: BlockService>(session: &Session<S>, command: &Command) -> Result<Done, Status> {
    let (namespace, service) = namespace(session, command)?;
    let Range { offset, length } = range(namespace, command.start_block(), command.block_count())?;
    let _admitted = admit(session, namespace, Access::Write).await?;
    let may_punch = command.dword(12) & DEALLOCATE != 0;
    let fua = command.force_unit_access();
    let zeroed = service.write_zeroes(offset, length, fua, may_punch).await;
    zeroed.map_err(|error| not_written(error, fua))?;
    Ok(Done::Answered)
}

async fn dataset_management<S: BlockService>(
    session: &Session<S>,
    command: &Command,
    capsule: Option<Buffer>,
) -> Result<Done, Status> {
    let (namespace, service) = namespace(session, command)?;
    let count = (command.dword(10) & 0xff) as usize + 1;
    // Linux sends room for all ranges, however many there are.
    let told = command.data()?.length();
    let needed = count.min(DATASET_RANGES_MAX) * size_of::<DatasetRange>();
    if (told as usize) < needed || told > LIST_BYTES_MAX {
        return Err(Status::DATA_LENGTH_INVALID);
    }
    let Some(HostData { buffer, held }) = session.host_data(command, capsule, told).await? else {
        return Ok(Done::ConnectionLost);
    };
    let ranges: Vec<DatasetRange> = buffer[..needed]
        .chunks_exact(size_of::<DatasetRange>())
        .filter_map(|bytes| DatasetRange::read_from_bytes(bytes).ok())
        .collect();
    drop(buffer);
    session.link.release(held);
    let ranges = ranges.iter().map(|one| range(namespace, one.start.get(), one.blocks.get().into()));
    let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
    // Other hints than that blocks aren't needed any more have no effect here.
    if command.dword(11) & DATASET_DEALLOCATE != 0 {
        let _admitted = admit(session, namespace, Access::Write).await?;
        for range in ranges {
            discard(session, (namespace, service), range).await?;
        }
    }
    Ok(Done::Answered)
}

/// Discards a range piece by piece, as long as the command's host is there and the server goes on: when the
/// connection has ended, that host may write the range by another one, and other hosts may write it. Nor does
/// an Attach wait for more than a piece. What isn't discarded keeps its bytes, which a host must reckon with
/// always.
async fn discard<S: BlockService>(
    session: &Session<S>,
    (namespace, service): (&Namespace, &S),
    range: Range,
) -> Result<(), Status> {
    let (mut at, stop) = (range.offset, range.offset + range.length);
    let is_wanted = || !is_over(session) && !namespace.is_changing_hands();
    while at < stop && (active(Mutant::DiscardUncut) || is_wanted()) {
        let end = piece_end(at, stop, service.discard_granularity());
        let discarded = service.discard(at, end - at, false).await;
        discarded.map_err(|error| failed(error, Status::WRITE_FAULT))?;
        at = end;
    }
    Ok(())
}

fn is_over<S>(session: &Session<S>) -> bool {
    session.ended.get() || session.controller.is_dead() || session.inner.stopping.get()
}

async fn reservation<S: BlockService>(
    session: &Session<S>,
    command: &Command,
    capsule: Option<Buffer>,
) -> Result<Done, Status> {
    let (namespace, _) = namespace(session, command)?;
    let releases = command.opcode == nvm::RESERVATION_RELEASE;
    let needed = if releases { 8 } else { 16 };
    let told = command.data()?.length();
    if !(needed..=LIST_BYTES_MAX).contains(&told) {
        return Err(Status::DATA_LENGTH_INVALID);
    }
    let Some(HostData { buffer, held }) = session.host_data(command, capsule, told).await? else {
        return Ok(Done::ConnectionLost);
    };
    let mut bytes = [0; size_of::<Keys>()];
    bytes[..needed as usize].copy_from_slice(&buffer[..needed as usize]);
    drop(buffer);
    session.link.release(held);
    let keys: Keys = zerocopy::transmute!(bytes);
    let (host, dword) = (&session.controller.host_id, command.dword(10));
    let preempted = namespace.reservations(|state| match command.opcode {
        nvm::RESERVATION_REGISTER => state.register(host, dword, keys).map(|()| Vec::new()),
        nvm::RESERVATION_ACQUIRE => state.acquire(host, dword, keys),
        _ => state.release(host, dword, keys.current.get()).map(|()| Vec::new()),
    })?;
    if command.opcode == nvm::RESERVATION_ACQUIRE && dword & 7 == action::PREEMPT_AND_ABORT {
        // Nothing is aborted; instead, what was admitted before is over when this is answered (C22).
        session.inner.subsystem.drain(&preempted, namespace).await;
    }
    Ok(Done::Answered)
}

async fn reservation_report<S: BlockService>(session: &Session<S>, command: &Command) {
    let length = (u64::from(command.dword(10)) + 1) * 4;
    let Some(length) = usize::try_from(length).ok().filter(|length| *length <= TRANSFER_BYTES_MAX as usize)
    else {
        return session.complete(command, Err(Status::INVALID_FIELD));
    };
    let Some(held) = session.answer_memory(command, length).await else { return };
    let report = || {
        let (namespace, _) = namespace(session, command)?;
        // Bit 0: extended identifiers, which all hosts over fabrics have.
        if command.dword(11) & 1 == 0 {
            return Err(Status::HOST_IDENTIFIER_INVALID);
        }
        let mut bytes = session.inner.subsystem.report(namespace);
        bytes.resize(length, 0);
        Ok(bytes)
    };
    let report = report();
    session.answer(command, held, report.as_deref().map_err(|status| *status));
}
