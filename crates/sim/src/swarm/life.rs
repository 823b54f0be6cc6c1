//! The lives of an array: each begins with its assembly, has users and events, and ends in peace or by force.

use pinstripe_engine::{
    assembly::create::create_placed,
    geometry::{ParityGeometry, StripeId},
};

use super::{
    Swarm, Testbed, UserState, Verdict, assembly, atlas, crash, events, hosts::STEPS_MAX, journal_loss,
    marks, net_events, races, rest, rough, stops, takeover, vast, wide,
};
use crate::{SECTOR, SimDisk, checks::survey};

/// Events of a life at most, of each kind.
const EVENTS_MAX: usize = 80;

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Peace,
    Crash,
    Kill,
    /// While the array is being stopped.
    CrashInStop,
    /// After more disks have gone than the level bears; all come back.
    Outage,
    /// After the journal device has gone.
    JournalLoss,
    /// By another client, while this one goes on.
    Takeover,
    /// After a stop under load.
    Stop,
}

/// All lives of an array, from its creation on.
pub(super) fn run(swarm: &mut Swarm) -> Result<(), Verdict> {
    create(&mut swarm.bed)?;
    for life in 0..swarm.bed.setup.lives {
        if !assembly::assemble(swarm)? {
            return Ok(());
        }
        let is_last = life + 1 == swarm.bed.setup.lives;
        let end = if is_last { End::Peace } else { drawn_end(&mut swarm.bed) };
        swarm.bed.ends_in_peace = end == End::Peace;
        live(swarm, end)?;
    }
    Ok(())
}

fn create(bed: &mut Testbed) -> Result<(), Verdict> {
    let placed = bed.setup.place(&mut bed.rng);
    let placed = placed.map_err(|error| Verdict::Refused(format!("placement: {error}")))?;
    let disks = bed.hosts.disks.clone();
    let placed = bed.hosts.block_on("create", async move {
        let devices: Vec<_> = disks.iter().map(SimDisk::attach).collect();
        create_placed(placed, &devices).await
    })?;
    placed.map_err(|error| Verdict::Refused(format!("create: {error}")))?;
    if let Some(geometry) = bed.setup.geometry() {
        bed.service.users = UserState::new(geometry.array_bytes() / SECTOR);
        if bed.setup.resync {
            spoil_parity(bed, &geometry);
        }
    }
    bed.hosts.start_servers();
    Ok(())
}

/// Parity that was never computed.
fn spoil_parity(bed: &mut Testbed, geometry: &ParityGeometry) {
    let Ok(survey) = survey(bed.hosts.disks.iter().enumerate()) else { return };
    let mut bytes = vec![0; geometry.chunk_bytes() as usize];
    for stripe in 0..geometry.stripes() {
        let map = geometry.slots(StripeId(stripe));
        for slot in [Some(map.p_slot()), map.q_slot()].into_iter().flatten() {
            if let Some((number, superblock)) = &survey.seats[slot.index()]
                && bed.rng.chance(3, 4)
            {
                bed.rng.fill(&mut bytes);
                let at = superblock.member.data_offset.0 * SECTOR + geometry.member_offset(StripeId(stripe));
                bed.hosts.disks[*number].poke(at, &bytes);
            }
        }
    }
}

/// How a life ends that isn't the last one.
fn drawn_end(bed: &mut Testbed) -> End {
    let mut end = End::Peace;
    if bed.rng.chance(bed.setup.crashes, 8) {
        end = bed.rng.pick(&[End::Crash, End::Crash, End::Crash, End::Kill, End::CrashInStop, End::Outage]);
    }
    if journal_loss::is_due(bed) {
        end = End::JournalLoss;
    }
    let takeovers = bed.setup.net.as_ref().map_or(0, |net| net.takeovers);
    if takeovers > 0 && bed.rng.chance(takeovers, 8) {
        end = End::Takeover;
    }
    if stops::is_due(bed) {
        end = End::Stop;
    }
    // A machine's death leaves nothing that could come late.
    if end == End::Crash && bed.setup.disk.late_writes_ns > 0 {
        end = End::Kill;
    }
    // What fails with more than the level bears may leave any row torn.
    if bed.setup.marks.is_some() && end == End::Outage { End::Crash } else { end }
}

fn live(swarm: &mut Swarm, end: End) -> Result<(), Verdict> {
    let bed = &mut swarm.bed;
    bed.service.open_front(&bed.setup, &mut bed.hosts, &mut bed.rng);
    bed.spawn_clients();
    if bed.summary.assemblies > 1 && bed.rng.chance(3, 4) {
        bed.spawn_read_all();
    }
    rough::begin(bed);
    let deadline = drawn_deadline(bed, end);
    serve(swarm, deadline)?;
    if end != End::Peace {
        marks::settle(swarm)?;
    }
    match end {
        End::Peace => return rest::rest(swarm),
        End::Takeover => return takeover::hand_over(swarm),
        End::CrashInStop => crash::begin_stop(swarm)?,
        End::Stop => stops::stop(swarm)?,
        End::Outage => crash::outage(swarm)?,
        End::Crash | End::Kill | End::JournalLoss => {}
    }
    let stopped = end == End::JournalLoss && journal_loss::lose(swarm)?;
    let bed = &mut swarm.bed;
    let power = match end {
        End::Kill => false,
        End::Outage => bed.rng.chance(1, 2),
        End::JournalLoss => stopped || bed.rng.chance(2, 3),
        _ => true,
    };
    crash::crash(bed, power)
}

/// The step at which a life ends whether its users are done or not.
fn drawn_deadline(bed: &mut Testbed, end: End) -> u64 {
    let now = bed.hosts.world.steps();
    let mut deadline = match end {
        End::Peace | End::CrashInStop => u64::MAX,
        End::Crash | End::Kill | End::Outage | End::JournalLoss | End::Takeover | End::Stop => {
            let most = if bed.setup.net.is_some() { 19 } else { 16 };
            now + (1 << bed.rng.range(5..most)) + bed.rng.below(500)
        }
    };
    if end == End::JournalLoss && bed.setup.rough.is_some() {
        // Before a member is lost: the journal would be one too many.
        deadline = now + (1 << bed.rng.range(6..12));
    }
    if end == End::Crash && bed.hosts.disks.iter().any(SimDisk::is_gone) && bed.rng.chance(1, 2) {
        // A device that was left behind is dangerous while it is only just out of date.
        deadline = now + (1 << bed.rng.range(6..11));
    }
    deadline
}

/// Users work and things happen until the users are done or `deadline` has come.
fn serve(swarm: &mut Swarm, mut deadline: u64) -> Result<(), Verdict> {
    let mut events = EVENTS_MAX;
    let limit = swarm.bed.hosts.world.steps() + STEPS_MAX;
    while !swarm.bed.service.users.is_idle() && swarm.bed.hosts.world.steps() < deadline {
        let gaps = if swarm.bed.setup.net.is_some() { 6..13 } else { 3..11 };
        let gap = 1 << swarm.bed.rng.range(gaps);
        swarm.step_on(gap.min(deadline - swarm.bed.hosts.world.steps()))?;
        let bed = &mut swarm.bed;
        let now = bed.hosts.world.steps();
        if now > limit {
            return Err(swarm.stuck());
        }
        if events > 0 {
            events -= 1;
            let failures = bed.summary.failures;
            have_events(bed);
            if bed.summary.failures > failures && deadline < u64::MAX && bed.rng.chance(1, 3) {
                // The time in which a loss is being recorded.
                deadline = deadline.min(now + (1 << bed.rng.range(2..11)));
            }
        }
    }
    Ok(())
}

/// One event of each kind that the setup has, or none.
fn have_events(bed: &mut Testbed) {
    bed.take_stock();
    events::event(bed);
    atlas::event(bed);
    wide::event(bed);
    vast::event(bed);
    marks::event(bed);
    rough::event(bed);
    races::event(bed);
    net_events::event(bed);
    bed.take_stock();
}
