//! Which hosts may read and write a namespace ("Reservations"): a pure state machine. It isn't kept over a
//! restart.

use zerocopy::IntoBytes;

use super::leave::LeftReservations;
use crate::wire::reservation::{IGNORE_KEY, Keys, ReportHeader, ReportRegistrant, ReservationKind, action};
use crate::wire::status::Status;

/// Hosts that may be registered with a namespace.
const REGISTRANTS_MAX: usize = 128;

/// A host, by its identifier.
pub(super) type HostId = [u8; 16];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Registrant {
    host: HostId,
    key: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reservation {
    kind: ReservationKind,
    /// Of no meaning where all registrants hold.
    host: HostId,
}

/// What a command wants of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    generation: u32,
    registrants: Vec<Registrant>,
    held: Option<Reservation>,
}

impl Reservations {
    /// What another process goes on with.
    pub fn left(&self) -> LeftReservations {
        LeftReservations {
            generation: self.generation,
            registrants: self.registrants.iter().map(|one| (one.host, one.key)).collect(),
            held: self.held.map(|held| (held.kind as u32, held.host)),
        }
    }

    /// What another process has left.
    pub fn restored(left: &LeftReservations) -> Self {
        let registrant = |(host, key): &(HostId, u64)| Registrant { host: *host, key: *key };
        let held = left
            .held
            .and_then(|(kind, host)| Some(Reservation { kind: ReservationKind::from_number(kind)?, host }));
        let registrants = left.registrants.iter().map(registrant).collect();
        Self { generation: left.generation, registrants, held }
    }

    /// Whether no host has reserved it, so that everything is allowed.
    pub fn is_free(&self) -> bool {
        self.held.is_none()
    }

    /// Whether `host` may do this now.
    pub fn allows(&self, host: &HostId, access: Access) -> bool {
        self.held.is_none_or(|held| {
            self.holds(held, host)
                || (held.kind.registrants_write() && self.key_of(host).is_some())
                || (access == Access::Read && held.kind.others_read())
        })
    }

    fn holds(&self, held: Reservation, host: &HostId) -> bool {
        if held.kind.all_hold() { self.key_of(host).is_some() } else { held.host == *host }
    }

    fn key_of(&self, host: &HostId) -> Option<u64> {
        self.registrants.iter().find(|registrant| registrant.host == *host).map(|registrant| registrant.key)
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Checks that `host` is registered, with that key unless it isn't to be looked at.
    fn expect_key(&self, host: &HostId, key: u64, dword: u32) -> Result<(), Status> {
        match self.key_of(host) {
            Some(registered) if registered == key || dword & IGNORE_KEY != 0 => Ok(()),
            _ => Err(Status::RESERVATION_CONFLICT),
        }
    }

    /// Reservation Register; `dword` is dword 10.
    pub fn register(&mut self, host: &HostId, dword: u32, keys: Keys) -> Result<(), Status> {
        // Persistence is asked for, and there is none.
        if dword >> 30 == 3 {
            return Err(Status::INVALID_FIELD);
        }
        let key = keys.other.get();
        match dword & 7 {
            action::REGISTER => match self.key_of(host) {
                Some(registered) if registered == key => return Ok(()),
                Some(_) => return Err(Status::RESERVATION_CONFLICT),
                None => self.add(host, key)?,
            },
            action::UNREGISTER => {
                self.expect_key(host, keys.current.get(), dword)?;
                self.remove(|registrant| registrant.host == *host);
            }
            action::REPLACE if key == 0 => return Err(Status::INVALID_FIELD),
            action::REPLACE if self.key_of(host).is_none() && dword & IGNORE_KEY != 0 => {
                self.add(host, key)?;
            }
            action::REPLACE => {
                self.expect_key(host, keys.current.get(), dword)?;
                for registrant in self.registrants.iter_mut().filter(|registrant| registrant.host == *host) {
                    registrant.key = key;
                }
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        self.changed();
        Ok(())
    }

    fn add(&mut self, host: &HostId, key: u64) -> Result<(), Status> {
        if key == 0 {
            return Err(Status::INVALID_FIELD);
        }
        if self.registrants.len() == REGISTRANTS_MAX {
            return Err(Status::RESERVATION_CONFLICT);
        }
        self.registrants.push(Registrant { host: *host, key });
        Ok(())
    }

    /// Forgets registrants, and the reservation with its holder.
    fn remove(&mut self, gone: impl Fn(&Registrant) -> bool) {
        self.registrants.retain(|registrant| !gone(registrant));
        if let Some(held) = self.held {
            let is_released = if held.kind.all_hold() {
                self.registrants.is_empty()
            } else {
                self.key_of(&held.host).is_none()
            };
            if is_released {
                self.held = None;
            }
        }
    }

    /// A host has lost the namespace to another one: so it has its registration, and its reservation.
    pub fn expel(&mut self, host: &HostId) {
        if self.key_of(host).is_some() {
            self.remove(|registrant| registrant.host == *host);
            self.changed();
        }
    }

    /// Reservation Acquire. Gives the hosts that lost their registration.
    pub fn acquire(&mut self, host: &HostId, dword: u32, keys: Keys) -> Result<Vec<HostId>, Status> {
        let kind = ReservationKind::from_number(dword >> 8 & 0xff).ok_or(Status::INVALID_FIELD)?;
        self.expect_key(host, keys.current.get(), dword)?;
        match dword & 7 {
            action::ACQUIRE => match self.held {
                None => {
                    self.held = Some(Reservation { kind, host: *host });
                    Ok(Vec::new())
                }
                Some(held) if held.kind == kind && self.holds(held, host) => Ok(Vec::new()),
                Some(_) => Err(Status::RESERVATION_CONFLICT),
            },
            action::PREEMPT | action::PREEMPT_AND_ABORT => self.preempt(host, kind, keys.other.get()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn preempt(&mut self, host: &HostId, kind: ReservationKind, key: u64) -> Result<Vec<HostId>, Status> {
        let takes_it = match self.held {
            Some(held) if held.kind.all_hold() => key == 0,
            Some(held) => self.key_of(&held.host) == Some(key),
            None => false,
        };
        if key == 0 && !takes_it {
            return Err(Status::INVALID_FIELD);
        }
        let takes_all = key == 0;
        let gone = |registrant: &Registrant| registrant.host != *host && (takes_all || registrant.key == key);
        let preempted: Vec<HostId> =
            self.registrants.iter().filter(|registrant| gone(registrant)).map(|gone| gone.host).collect();
        if preempted.is_empty() && !takes_it {
            return Err(Status::RESERVATION_CONFLICT);
        }
        self.remove(gone);
        if takes_it {
            self.held = Some(Reservation { kind, host: *host });
        }
        self.changed();
        Ok(preempted)
    }

    /// Reservation Release.
    pub fn release(&mut self, host: &HostId, dword: u32, key: u64) -> Result<(), Status> {
        self.expect_key(host, key, dword)?;
        match dword & 7 {
            action::RELEASE => {
                let kind = ReservationKind::from_number(dword >> 8 & 0xff).ok_or(Status::INVALID_FIELD)?;
                if let Some(held) = self.held.filter(|held| self.holds(*held, host)) {
                    if held.kind != kind {
                        return Err(Status::INVALID_FIELD);
                    }
                    self.held = None;
                }
            }
            action::CLEAR => {
                self.registrants.clear();
                self.held = None;
                self.changed();
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    /// Reservation Report with extended identifiers; `controllers` gives those of a host.
    pub fn report(&self, controllers: impl Fn(&HostId) -> Vec<u16>) -> Vec<u8> {
        let mut entries = Vec::new();
        for registrant in &self.registrants {
            let mut numbers = controllers(&registrant.host);
            if numbers.is_empty() {
                numbers.push(0xffff);
            }
            let holds = self.held.is_some_and(|held| self.holds(held, &registrant.host));
            entries.extend(numbers.into_iter().map(|controller| ReportRegistrant {
                controller: controller.into(),
                status: holds.into(),
                reserved: [0; 5],
                key: registrant.key.into(),
                host_id: registrant.host,
                reserved_end: [0; 32],
            }));
        }
        let header = ReportHeader {
            generation: self.generation.into(),
            kind: self.held.map_or(0, |held| held.kind as u8),
            registrants: u16::try_from(entries.len()).unwrap_or(u16::MAX).into(),
            reserved: [0; 2],
            persistent: 0,
            reserved_end: [0; 14],
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(64, 0);
        for entry in entries {
            bytes.extend_from_slice(entry.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = [1; 16];
    const B: HostId = [2; 16];
    const C: HostId = [3; 16];

    fn keys(current: u64, other: u64) -> Keys {
        Keys { current: current.into(), other: other.into() }
    }

    fn registered() -> Reservations {
        let mut state = Reservations::default();
        state.register(&A, action::REGISTER, keys(0, 0xa)).unwrap();
        state.register(&B, action::REGISTER, keys(0, 0xb)).unwrap();
        state
    }

    #[test]
    fn another_process_goes_on_with_all_of_it() {
        let mut state = registered();
        let wanted = action::ACQUIRE | kind(ReservationKind::WriteExclusiveRegistrants);
        state.acquire(&A, wanted, keys(0xa, 0)).unwrap();
        let restored = Reservations::restored(&state.left());
        assert_eq!(restored.report(|_| vec![1]), state.report(|_| vec![1]));
        for host in [A, B, C] {
            for access in [Access::Read, Access::Write] {
                assert_eq!(restored.allows(&host, access), state.allows(&host, access));
            }
        }
        assert!(!restored.allows(&C, Access::Write));
    }

    fn kind(kind: ReservationKind) -> u32 {
        (kind as u32) << 8
    }

    #[test]
    fn a_writer_without_the_reservation_is_refused_and_a_reader_is_not() {
        let mut state = registered();
        assert!(state.allows(&C, Access::Write));
        state.acquire(&A, kind(ReservationKind::WriteExclusive), keys(0xa, 0)).unwrap();
        assert!(state.allows(&A, Access::Write));
        assert!(!state.allows(&B, Access::Write));
        assert!(!state.allows(&C, Access::Write) && state.allows(&C, Access::Read));
        assert_eq!(
            state.acquire(&B, kind(ReservationKind::WriteExclusive), keys(0xb, 0)),
            Err(Status::RESERVATION_CONFLICT)
        );
    }

    #[test]
    fn exclusive_access_keeps_readers_out_too() {
        let mut state = registered();
        state.acquire(&A, kind(ReservationKind::ExclusiveAccess), keys(0xa, 0)).unwrap();
        assert!(!state.allows(&B, Access::Read));
        state.release(&A, kind(ReservationKind::ExclusiveAccess), 0xa).unwrap();
        assert!(state.allows(&B, Access::Read));
    }

    #[test]
    fn preemption_takes_the_reservation_and_the_registration() {
        let mut state = registered();
        state.acquire(&A, kind(ReservationKind::WriteExclusive), keys(0xa, 0)).unwrap();
        let dword = kind(ReservationKind::WriteExclusive) | action::PREEMPT_AND_ABORT;
        assert_eq!(state.acquire(&C, dword, keys(0, 0xa)), Err(Status::RESERVATION_CONFLICT));
        assert_eq!(state.acquire(&B, dword, keys(0xb, 0xa)), Ok(vec![A]));
        assert!(state.allows(&B, Access::Write) && !state.allows(&A, Access::Write));
        assert_eq!(
            state.register(&A, action::UNREGISTER, keys(0xa, 0)),
            Err(Status::RESERVATION_CONFLICT),
            "A is no registrant any more"
        );
    }

    #[test]
    fn a_wrong_key_changes_nothing() {
        let mut state = registered();
        assert_eq!(
            state.acquire(&A, kind(ReservationKind::WriteExclusive), keys(0xb, 0)),
            Err(Status::RESERVATION_CONFLICT)
        );
        assert_eq!(state.release(&A, action::CLEAR, 0xb), Err(Status::RESERVATION_CONFLICT));
        assert!(state.is_free());
        assert_eq!(state.register(&A, action::REPLACE, keys(0xb, 5)), Err(Status::RESERVATION_CONFLICT));
        state.register(&A, action::REPLACE | IGNORE_KEY, keys(0, 5)).unwrap();
        state.acquire(&A, kind(ReservationKind::WriteExclusiveAll), keys(5, 0)).unwrap();
        assert!(state.allows(&B, Access::Write) && !state.allows(&C, Access::Write));
    }

    #[test]
    fn persistence_is_not_promised() {
        let mut state = Reservations::default();
        assert_eq!(state.register(&A, 3 << 30, keys(0, 1)), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn a_holder_that_unregisters_releases() {
        let mut state = registered();
        state.acquire(&A, kind(ReservationKind::ExclusiveAccess), keys(0xa, 0)).unwrap();
        state.register(&A, action::UNREGISTER, keys(0xa, 0)).unwrap();
        assert!(state.is_free());
        let report = state.report(|_| vec![3, 4]);
        assert_eq!((report.len(), report[4], report[5]), (64 + 2 * 64, 0, 2));
    }

    #[test]
    fn what_all_registrants_hold_stays_as_long_as_one_of_them() {
        let mut state = registered();
        state.acquire(&A, kind(ReservationKind::WriteExclusiveAll), keys(0xa, 0)).unwrap();
        state.register(&A, action::UNREGISTER, keys(0xa, 0)).unwrap();
        assert!(state.allows(&B, Access::Write) && !state.allows(&A, Access::Write));
        assert!(!state.allows(&C, Access::Write));
        state.register(&B, action::UNREGISTER, keys(0xb, 0)).unwrap();
        assert!(state.is_free());
    }
}
