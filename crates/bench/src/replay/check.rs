//! What a replay has left on the device.

use std::collections::HashSet;

use pinstripe_runtime::shard;

use super::clients::{Replay, SECTOR, sector_bytes};
use crate::{
    destination::Destination,
    ledger::{Bodies, MARK, identity},
    run::BenchError,
    trace::Request,
};

/// Sectors of which account is kept together.
const PAGE_SECTORS: u64 = 128;
const PAGE_BYTES: u64 = PAGE_SECTORS * SECTOR;

/// By sector, the number of the last request to be taken that wrote it; 0 where none did.
struct Written {
    /// Those of which something was written, in order.
    pages: Vec<u64>,
    last: Vec<u32>,
}

impl Written {
    fn of(replay: &Replay) -> Self {
        let pages_of = |request: &Request| {
            request.offset / PAGE_BYTES..(request.offset + u64::from(request.length)).div_ceil(PAGE_BYTES)
        };
        let pages: HashSet<u64> = replay.writes().flat_map(|(_, request)| pages_of(request)).collect();
        let mut pages: Vec<u64> = pages.into_iter().collect();
        pages.sort_unstable();
        let page_sectors = usize::try_from(PAGE_SECTORS).unwrap_or(usize::MAX);
        let mut last = vec![0; pages.len() * page_sectors];
        for (number, request) in replay.writes() {
            // All pages of a request are there, so they lie side by side here too.
            let place = pages.partition_point(|page| *page < request.offset / PAGE_BYTES);
            let within = usize::try_from(request.offset % PAGE_BYTES / SECTOR).unwrap_or(usize::MAX);
            let sectors = usize::try_from(u64::from(request.length) / SECTOR).unwrap_or(usize::MAX);
            let first = place * page_sectors + within;
            last[first..first + sectors].fill(number);
        }
        Self { pages, last }
    }

    /// The pages, each with its sectors' last writes.
    fn by_page(&self) -> impl Iterator<Item = (u64, &[u32])> {
        let page_sectors = usize::try_from(PAGE_SECTORS).unwrap_or(usize::MAX);
        self.pages.iter().copied().zip(self.last.chunks_exact(page_sectors))
    }
}

/// Reads back all that was written; how many sectors that was. With `zeroed`, what lies beside it must be
/// zero.
pub(super) async fn read_back(
    replay: &Replay,
    destination: &Destination,
    zeroed: bool,
) -> Result<u64, BenchError> {
    let (written, mut bodies, mut checked) = (Written::of(replay), Bodies::default(), 0);
    for (page, last) in written.by_page() {
        let start = page * PAGE_BYTES;
        let length = usize::try_from(PAGE_BYTES.min(replay.size - start)).unwrap_or(usize::MAX);
        let (result, bytes) = destination.read(start, shard::buffer(length)).await;
        result?;
        for ((at, sector), last) in
            (start..).step_by(sector_bytes()).zip(bytes.chunks_exact(sector_bytes())).zip(last)
        {
            if *last > 0 {
                check(replay, (at, sector), *last, &mut bodies).map_err(BenchError::WrongData)?;
                checked += 1;
            } else if zeroed && !pinstripe_parity::kernel().is_zero(sector) {
                return Err(BenchError::WrongData(format!(
                    "the sector at byte {at} was never written and changed"
                )));
            }
        }
    }
    Ok(checked)
}

/// What is wrong with a sector that was written, last of all by the request `last`.
fn check(replay: &Replay, (at, sector): (u64, &[u8]), last: u32, bodies: &mut Bodies) -> Result<(), String> {
    let (place, number, client) = identity(sector);
    if place != at {
        return Err(format!("the sector at byte {at} has the content of the sector at byte {place}"));
    }
    let covers =
        |request: &Request| (request.offset..request.offset + u64::from(request.length)).contains(&at);
    if !replay.of(number).is_some_and(covers) {
        return Err(format!("the sector at byte {at} is of request {number}, which did not write it"));
    }
    if !replay.may_be_left(number, last) {
        return Err(format!(
            "the sector at byte {at} is of request {number}, after whose acknowledgement request {last} wrote it"
        ));
    }
    // Members in memory have no sectors: of two writes at a time parts of both may be left, if nothing orders
    // them.
    let meets_another = || {
        let mut others = replay.writes().filter(|(other, request)| *other != number && covers(request));
        others.any(|(other, _)| replay.may_be_left(other, last))
    };
    if sector[MARK..] != bodies.of(client, sector.len())[MARK..] && !meets_another() {
        return Err(format!("the sector at byte {at} has its mark and another's body"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pinstripe_runtime::{
        DeviceSource, Memory, MemorySource,
        uring::{self, RuntimeConfig},
    };

    use super::*;
    use crate::{ledger, trace::Trace};

    /// Request 1 writes sectors 0 to 7, request 2 sectors 4 to 11, request 3 reads, request 4 writes sectors
    /// 200 to 207.
    fn replay() -> Replay {
        let text = "W\t0\t4096\nW\t2048\t4096\nR\t0\t4096\nW\t102400\t4096\n";
        Replay::new(Trace::parse(Path::new("t"), &mut text.as_bytes()).unwrap(), false, 1 << 20, 512)
    }

    /// The first two writes one after the other.
    fn in_turn() -> Replay {
        let replay = replay();
        for number in [1, 2] {
            assert_eq!(replay.take().unwrap().0, number);
            replay.acknowledge(number);
        }
        replay
    }

    fn verdict(replay: &Replay, sector: u64, (place, number): (u64, u32)) -> Result<(), String> {
        let mut bytes = [0; 512];
        ledger::fill(&mut bytes, 5);
        ledger::mark(&mut bytes, place * SECTOR, number, 5);
        let written = Written::of(replay);
        let (_, last) = written.by_page().find(|(page, _)| *page == sector / PAGE_SECTORS).unwrap();
        let last = last[usize::try_from(sector % PAGE_SECTORS).unwrap()];
        check(replay, (sector * SECTOR, &bytes), last, &mut Bodies::default())
    }

    #[test]
    fn what_overlapping_requests_may_leave_depends_on_when_they_were_acknowledged() {
        // 2 was taken before 1 was acknowledged.
        let at_once = replay();
        at_once.take().and(at_once.take()).unwrap();
        at_once.acknowledge(1);
        at_once.acknowledge(2);
        assert_eq!(verdict(&at_once, 5, (5, 1)), Ok(()));
        assert_eq!(verdict(&at_once, 5, (5, 2)), Ok(()));
        // 2 was taken after it.
        let in_turn = in_turn();
        assert!(verdict(&in_turn, 5, (5, 1)).unwrap_err().contains("after whose acknowledgement request 2"));
        assert_eq!(verdict(&in_turn, 5, (5, 2)), Ok(()));
        assert_eq!(verdict(&in_turn, 3, (3, 1)), Ok(()), "2 did not write it");
    }

    #[test]
    fn beside_what_was_written_must_still_be_zero_where_it_was() {
        let read_back = |byte: u8, zeroed| {
            uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
                let (memory, replay) = (Memory::new(1 << 20).unwrap(), in_turn());
                let mut bytes = vec![0; 4096];
                for (number, sector) in [(1_u32, 0_u64), (2, 4), (4, 200)] {
                    bytes.chunks_mut(sector_bytes()).for_each(|sector| ledger::fill(sector, 5));
                    ledger::mark(&mut bytes, sector * SECTOR, number, 5);
                    memory.copy_in(sector * SECTOR, &bytes).unwrap();
                }
                memory.copy_in(50 * SECTOR, &[byte]).unwrap();
                let source = MemorySource { name: "memory".into(), memory, logical_block: 512 };
                let destination = Destination::Export(source.attach().unwrap());
                super::read_back(&replay, &destination, zeroed).await
            })
            .unwrap()
        };
        assert!(matches!((read_back(0, true), read_back(7, false)), (Ok(20), Ok(20))));
        let error = read_back(7, true).unwrap_err().to_string();
        assert!(error.contains("sector at byte 25600 was never written and changed"), "{error}");
    }

    #[test]
    fn a_sector_of_another_place_request_or_body_is_found() {
        let replay = in_turn();
        let wrong = |sector, content| verdict(&replay, sector, content).unwrap_err();
        assert!(wrong(3, (4, 1)).contains("has the content of the sector at byte 2048"));
        assert!(wrong(3, (3, 2)).contains("is of request 2, which did not write it"));
        assert!(wrong(3, (3, 0)).contains("is of request 0, which did not write it"));
        assert!(wrong(203, (203, 9)).contains("is of request 9, which did not write it"));
        let mut bytes = [0; 512];
        ledger::mark(&mut bytes, 0, 1, 5);
        let said = check(&replay, (0, &bytes), 1, &mut Bodies::default()).unwrap_err();
        assert!(said.contains("another's body"), "{said}");
        ledger::mark(&mut bytes, 5 * SECTOR, 2, 5);
        let said = check(&replay, (5 * SECTOR, &bytes), 2, &mut Bodies::default()).unwrap_err();
        assert!(said.contains("another's body"), "1 was over before 2: {said}");
        replay.acknowledge(1);
        assert_eq!(check(&replay, (5 * SECTOR, &bytes), 2, &mut Bodies::default()), Ok(()), "both at a time");
    }
}
