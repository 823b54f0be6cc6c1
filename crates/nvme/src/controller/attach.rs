//! Attach, Detach and Query (section 3).

use std::sync::Arc;

use pinstripe_block::BlockService;
use pinstripe_runtime::{Buffer, shard};

use super::offload::fence::{self, Grant, Outcome};
use super::offload::{Guarded, GuardedState, Server};
use super::reservation::HostId;
use super::session::Session;
use super::subsystem::Controller;
use crate::mutants::{Mutant, active};
use crate::wire::command::Command;
use crate::wire::offload::{ATTACH_BYTES_MAX, Attach, Query, admin};
use crate::wire::status::Status;

/// How long an Attach or Detach waits for another one of the same namespace.
const TURN_NANOSECONDS: u64 = 20_000_000_000;

/// Carries out an admin command of the extension and answers it.
pub(crate) async fn execute<S: BlockService>(
    session: &Session<S>,
    server: &Server,
    command: &Command,
    capsule: Option<Buffer>,
) {
    let number = command.namespace.get();
    let present = session.inner.subsystem.namespace(number).is_some();
    let Some(guarded) = server.namespace(number).filter(|_| present && !session.controller.discovery) else {
        return session.complete(command, Err(Status::INVALID_NAMESPACE));
    };
    let result = match command.opcode {
        admin::QUERY => {
            let page = query(server, guarded, session.controller.id);
            return session.send_data(command, &page[..]);
        }
        admin::DETACH => detach(session, server, guarded, command).await,
        _ => match attach_data(session, command, capsule).await {
            Ok(Some(attach)) => self::attach(session, server, guarded, &attach).await,
            Ok(None) => return,
            Err(status) => Err(status),
        },
    };
    session.complete(command, result.map(|()| 0));
}

fn query(
    server: &Server,
    guarded: &Guarded,
    controller: u16,
) -> Box<[u8; crate::wire::offload::QUERY_BYTES]> {
    let free_to_receive = server.meter.free(shard::now());
    guarded.with(|state| {
        let (record, attached) = state.fence.settled();
        let query = Query {
            array: record.map_or([0; 16], |record| record.array),
            epoch: record.map_or(0, |record| record.epoch),
            given_up: record.is_some_and(|record| record.given_up),
            attached,
            ended: state.fence.has_ended(controller),
            held: state.table.held(),
            incarnation: server.incarnation,
            // What this server sends is not measured.
            free_to_send: 0,
            free_to_receive,
        };
        query.encode()
    })
}

/// `Ok(None)` at the connection's end.
async fn attach_data<S: BlockService>(
    session: &Session<S>,
    command: &Command,
    capsule: Option<Buffer>,
) -> Result<Option<Attach>, Status> {
    let length = command.dword(10);
    if length as usize > ATTACH_BYTES_MAX {
        return Err(Status::INVALID_FIELD);
    }
    let Some(data) = session.host_data(command, capsule, length).await? else { return Ok(None) };
    let attach = Attach::parse(&data.buffer);
    drop(data.buffer);
    session.link.release(data.held);
    attach.map(Some)
}

async fn attach<S: BlockService>(
    session: &Session<S>,
    server: &Server,
    guarded: &Arc<Guarded>,
    attach: &Attach,
) -> Result<(), Status> {
    if attach.incarnation != [0; 16] && attach.incarnation != server.incarnation {
        return Err(Status::RESTARTED);
    }
    let controller = session.controller.id;
    let host = fence::owner(session.controller.host_id, attach.instance);
    if attach.peer {
        return guarded.with(|state| attach_peer(state, attach, &session.controller));
    }
    let members = server.members(guarded, attach, session.digests())?;
    let granted = in_turn(guarded, |state| {
        still_there(&session.controller, state)?;
        let grant = state.fence.attach(attach, controller, host, members.clone())?;
        match grant {
            Grant::Now => state.owner = Some(session.controller.host_id),
            Grant::Ends => state.table.drop_uncommitted(None),
            // Should the record not be stored, what the host that is attached has prepared is still there.
            Grant::Raises => {}
        }
        Ok(grant)
    });
    let granted = granted.await?;
    if granted == Grant::Now {
        // A controller that dies from here on is detached by what kills it: that takes the state afterwards.
        return Ok(());
    }
    // What was admitted before is over when this is answered (C22).
    if !active(Mutant::AttachNotDrained) {
        guarded.drain().await;
    }
    if session.controller.is_dead() {
        // Nothing is stored yet. The host that is attached goes on: it would lose the namespace to none.
        guarded.with(|state| state.fence.grant(controller, host, Outcome::Unchanged));
        guarded.changed.notify();
        return Err(Status::NOT_ATTACHED);
    }
    let raises = granted == Grant::Raises;
    let outcome = match guarded.with(|state| state.fence.record().copied()) {
        Some(record) if raises => server.store(guarded, &record).await,
        _ => Outcome::Stored,
    };
    if outcome == Outcome::Stored {
        // Still in its turn: nothing else attaches meanwhile.
        let former = guarded.with(|state| state.owner.replace(session.controller.host_id));
        expel(session, guarded.number, former);
    }
    let granted = guarded.with(|state| {
        if raises && outcome != Outcome::Unchanged {
            state.table.forget_all();
        }
        state.fence.grant(controller, host, outcome);
        still_there(&session.controller, state)
    });
    guarded.changed.notify();
    if outcome == Outcome::Stored { granted } else { Err(Status::INTERNAL) }
}

/// Ends the reservation of the host from which the namespace was taken. It may have died with one, and then
/// its successor's writes would be refused.
fn expel<S: BlockService>(session: &Session<S>, namespace: u32, former: Option<HostId>) {
    if let Some(former) = former.filter(|former| *former != session.controller.host_id)
        && let Some(namespace) = session.inner.subsystem.namespace(namespace)
    {
        namespace.reservations(|state| state.expel(&former));
    }
}

/// Does something that must not happen while the record changes.
async fn in_turn<T>(
    guarded: &Guarded,
    mut work: impl FnMut(&mut GuardedState) -> Result<T, Status>,
) -> Result<T, Status> {
    let turn = guarded
        .changed
        .wait_for(|| guarded.with(|state| if state.fence.changing { None } else { Some(work(state)) }));
    shard::timeout(TURN_NANOSECONDS, turn).await.unwrap_or(Err(Status::BUSY))
}

/// Attach of another server.
fn attach_peer(state: &mut GuardedState, attach: &Attach, controller: &Controller) -> Result<(), Status> {
    state.fence.attach_peer(attach, controller.id)?;
    still_there(controller, state)
}

/// Detaches a controller that has ended meanwhile: nothing else would.
fn still_there(controller: &Controller, state: &mut GuardedState) -> Result<(), Status> {
    if controller.is_dead() {
        state.leave(controller.id);
        return Err(Status::NOT_ATTACHED);
    }
    Ok(())
}

async fn detach<S: BlockService>(
    session: &Session<S>,
    server: &Server,
    guarded: &Arc<Guarded>,
    command: &Command,
) -> Result<(), Status> {
    if command.dword(10) > 1 {
        return Err(Status::INVALID_FIELD);
    }
    let controller = session.controller.id;
    let gives_up = command.dword(10) == 1;
    let left = in_turn(guarded, |state| {
        state.fence.check_host(controller)?;
        if !gives_up {
            state.leave(controller);
            return Ok(None);
        }
        state.table.drop_uncommitted(None);
        Ok(state.fence.give_up())
    });
    let Some(record) = left.await? else { return Ok(()) };
    guarded.drain().await;
    let outcome = server.store(guarded, &record).await;
    guarded.with(|state| {
        state.fence.given_up(outcome);
        state.owner = state.owner.filter(|_| outcome != Outcome::Stored);
    });
    guarded.changed.notify();
    if outcome == Outcome::Stored { Ok(()) } else { Err(Status::INTERNAL) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{NamespaceConfig, Subsystem, SubsystemConfig};
    use pinstripe_runtime::{Shard, ShardConfig};

    /// Its number is given to another one later, which would bring parts without having attached.
    #[test]
    fn a_controller_of_another_server_that_has_ended_is_not_attached() {
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let namespace = NamespaceConfig {
            uuid: [1; 16],
            size_bytes: 4096,
            block_size: 512,
            preferred_block: 512,
            read_only: false,
        };
        let config = SubsystemConfig {
            nqn: "nqn.2026-01.com.example:x".to_owned(),
            serial: "1".to_owned(),
            namespaces: vec![namespace],
            queues_max: 1,
            addresses: Vec::new(),
        };
        let subsystem = Subsystem::new(config).unwrap();
        let added = |host: u8| subsystem.add_controller([host; 16], "nqn.2026-01.com.example:h", false, 0, 0);
        let (host, server) = (added(1).unwrap(), added(2).unwrap());
        let attach = Attach {
            array: [7; 16],
            epoch: 1,
            generation: 0,
            peer: false,
            takeover: false,
            alone: false,
            incarnation: [0; 16],
            instance: [0; 16],
            peers: Vec::new(),
        };
        let mut state = GuardedState::new(None, 1);
        let granted = state.fence.attach(&attach, host.id, host.host_id, fence::Table::default());
        assert_eq!(granted, Ok(Grant::Raises));
        state.fence.grant(host.id, host.host_id, Outcome::Stored);
        let peer = Attach { peer: true, ..attach };
        assert_eq!(attach_peer(&mut state, &peer, &server), Ok(()));
        assert_eq!(state.fence.check_peer(server.id), Ok(()));
        server.kill();
        assert_eq!(attach_peer(&mut state, &peer, &server), Err(Status::NOT_ATTACHED));
        assert!(state.fence.check_peer(server.id).is_err());
    }
}
