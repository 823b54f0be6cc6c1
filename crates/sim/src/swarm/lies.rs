//! A disk that writes to a wrong place of itself and says that all is well: what is promised then, and no
//! more.
//!
//! One such write makes two chunks wrong, where it should be and where it is, each in a row of its own. Reads
//! don't notice. So while users go on, with all members there ([`Swarm::lie_under_load`]):
//!
//! - those sectors of that member may read as anything until they are written again, and no other sector
//!   does;
//! - a `repair` makes parity of all rows match again, and changes no data.
//!
//! And on level 6, if nothing was written to these rows since ([`Swarm::lie_in_peace`]): `repair --locate`
//! makes everything right. (A write by read-modify-write takes the wrong bytes for the old ones and leaves
//! the difference in P and Q. There it looks as if the new bytes were wrong.)

use std::rc::Rc;

use pinstripe_engine::{
    geometry::{MemberSlot, ParityGeometry, Role, StripeId, StripeMap},
    io::volume::Volume,
    maintenance::{CheckReport, ScrubAction, ScrubRequest},
};

use super::{
    Swarm, Verdict, client,
    front::FrontEnd,
    life::{STEPS_MAX, sector_of},
};
use crate::{
    Fault, SECTOR,
    checks::{check_parity, survey},
    world::Stuck,
};

/// A member that once writes to a wrong place.
struct Liar {
    slot: usize,
    disk: usize,
    /// Where its data begins, in bytes.
    data: u64,
}

impl Swarm {
    /// Has a disk write to a wrong place, now and then, and looks at what comes of it. The array is whole and
    /// at rest, before and after.
    pub(crate) fn lie(&mut self, geometry: &ParityGeometry) -> Result<(), Verdict> {
        let Some(habits) = self.setup.atlas.clone() else { return Ok(()) };
        if !self.setup.consistency.settles_by_parity() || !self.rng.chance(habits.lies, 8) {
            return Ok(());
        }
        // Nothing is promised of what a crash would leave now.
        let explorer = self.explorer.take();
        let lied = self.lie_in_turn(geometry);
        self.explorer = explorer;
        lied
    }

    fn lie_in_turn(&mut self, geometry: &ParityGeometry) -> Result<(), Verdict> {
        if geometry.redundancy() == 2 {
            self.lie_in_peace(geometry)?;
        }
        self.lie_under_load(geometry)
    }

    /// Draws a member, and has its next write of data go astray by at least `apart` bytes.
    fn mislead(&mut self, geometry: &ParityGeometry, apart: u64) -> Option<Liar> {
        let snapshot = self.array().shared().snapshot();
        let slot = self.rng.index(snapshot.seats.len());
        let member = snapshot.seats[slot].member()?;
        let disk = self.disks.iter().position(|disk| disk.info().name == member.name)?;
        let (data, bytes) = (member.data_offset, geometry.member_bytes());
        let block = u64::from(self.setup.block);
        let by = apart + self.rng.below((bytes - 2 * apart) / block) * block;
        self.disks[disk].fault(&Fault::Misdirect(data..data + bytes, by));
        self.summary.lies += 1;
        Some(Liar { slot, disk, data })
    }

    fn lie_in_peace(&mut self, geometry: &ParityGeometry) -> Result<(), Verdict> {
        let chunk = u64::from(geometry.chunk_bytes());
        let Some(liar) = self.mislead(geometry, chunk) else { return Ok(()) };
        let stripe = u64::from(geometry.stripe_bytes()) / SECTOR;
        let block = u64::from(self.setup.block) / SECTOR;
        let length = block * (1 + self.rng.below(stripe / block));
        let at = self.rng.below(geometry.stripes()) * stripe
            + self.rng.below((stripe - length) / block + 1) * block;
        let shared = std::sync::Arc::clone(self.array().shared());
        let shop = Rc::clone(&self.shop);
        shop.open.set(shop.open.get() + 1);
        self.world.spawn(0, "write", async move {
            let front_end = FrontEnd::Direct(Volume::new(shared));
            client::write(&front_end, &shop, at..at + length, false).await;
            shop.open.set(shop.open.get() - 1);
        });
        self.wait(|swarm| swarm.shop.open.get() == 0)?;
        self.disks[liar.disk].fault(&Fault::Heal);
        self.disks[liar.disk].take_misplaced();
        let report = self.scrub_by(ScrubAction::Locate)?;
        if report.unexplained_sectors > 0 {
            return Err(Verdict::Scrub(format!("{report:?} after a single write that went astray")));
        }
        self.look_after_lies(geometry)
    }

    fn lie_under_load(&mut self, geometry: &ParityGeometry) -> Result<(), Verdict> {
        let Some(liar) = self.mislead(geometry, u64::from(self.setup.block)) else { return Ok(()) };
        self.spawn_clients();
        let limit = self.world.steps() + STEPS_MAX;
        let shared = std::sync::Arc::clone(self.array().shared());
        let busy = |swarm: &Self| {
            swarm.shop.open.get() > 0 || shared.admission.writers() > 0 || !shared.stripes.is_idle()
        };
        while busy(self) && !self.shop.is_over() {
            if !self.step()? {
                return Err(Stuck::Deadlock(self.world.report()).into());
            }
            self.doubt_misplaced(geometry, &liar);
            if self.world.steps() > limit {
                return Err(self.stuck());
            }
        }
        self.disks[liar.disk].fault(&Fault::Heal);
        self.scrub_by(ScrubAction::Repair)?;
        self.look_after_lies(geometry)
    }

    /// Nothing is promised of sectors that a stray write has missed or hit.
    fn doubt_misplaced(&mut self, geometry: &ParityGeometry, liar: &Liar) {
        let chunk = u64::from(geometry.chunk_bytes());
        for astray in self.disks[liar.disk].take_misplaced() {
            for from in [astray.wanted, astray.got] {
                for at in (from - liar.data..from - liar.data + astray.length).step_by(512) {
                    let (stripe, row) = (at / chunk, at % chunk / SECTOR);
                    if let Some(column) = data_column(geometry.slots(StripeId(stripe)), liar.slot) {
                        let sector = sector_of(geometry, stripe, column, row);
                        self.shop.ledger.borrow_mut().doubt(sector..sector + 1);
                    }
                }
            }
        }
    }

    fn scrub_by(&mut self, action: ScrubAction) -> Result<CheckReport, Verdict> {
        let array = self.array();
        let request = ScrubRequest { action, ..ScrubRequest::default() };
        let report = self.world.block_on(0, "scrub", STEPS_MAX, async move { array.scrub(request).await })?;
        report.map_err(|error| Verdict::Refused(format!("{action:?}: {error}")))
    }

    /// Everything that is promised reads as it must, and parity matches.
    fn look_after_lies(&mut self, geometry: &ParityGeometry) -> Result<(), Verdict> {
        self.spawn_read_all();
        self.wait(|swarm| swarm.shop.open.get() == 0)?;
        let shared = std::sync::Arc::clone(self.array().shared());
        self.wait(|_| shared.admission.writers() == 0 && shared.stripes.is_idle())?;
        let present = self.present();
        let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
        let (members, why) = (survey.members(&self.disks)?, "it was repaired after a write that went astray");
        check_parity(geometry, &members, 0..geometry.stripes(), why)?;
        Ok(())
    }
}

fn data_column(map: StripeMap, slot: usize) -> Option<usize> {
    match map.role(MemberSlot(u8::try_from(slot).unwrap_or(u8::MAX))) {
        Role::Data(column) => Some(column),
        Role::P | Role::Q => None,
    }
}
