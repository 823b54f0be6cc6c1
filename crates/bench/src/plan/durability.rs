//! The probability of loss: published formulas, and what they assume.
//!
//! Rates are for each hour. With N members, of which each fails at the rate λ, and R hours from a failure to
//! the end of the rebuild, R far shorter than 1/λ:
//!
//! - A level without parity loses data with its first member, or its first latent error: N(λ + δ).
//! - One parity: N(N-1) λ² R for a second failure. D. Patterson, G. Gibson, R. Katz, A Case for Redundant
//!   Arrays of Inexpensive Disks (RAID), SIGMOD 1988, section 5, with one group.
//! - Two parities: N(N-1)(N-2) λ³ R² for a third one. P. Chen and others, RAID: High-Performance, Reliable
//!   Secondary Storage, ACM Computing Surveys 26(2), 1994, section 3.4.
//! - One sector that can't be read on the members that the last rebuild needs is a loss, too: N λ p(N-1) with
//!   one parity, N(N-1) λ² R p(N-2) with two, with p(m) that one of m members has such a sector (the same).
//!
//! `p(m) = 1 - ((1-UBER)^bits (1-l))^m`. UBER is what data sheets give for each bit that is read. l is that a
//! member has a latent error that no scrub has found yet: with δ of them an hour, and an age of up to T that
//! is as likely to be any, `1 - (1-exp(-δT))/(δT)`. T is the interval of scrubs, or the time of service where
//! there are none. That scrubs bound the age of latent errors: T. Schwarz and others, Disk Scrubbing in Large
//! Archival Storage Systems, MASCOTS 2004; J. Elerath, M. Pecht, Enhanced Reliability Modeling of RAID
//! Storage Systems, DSN 2007.
//!
//! All failures are assumed to be independent and as likely at any age, which real ones aren't (Elerath and
//! Pecht); drives of one batch under one roof are worse. A loss of one sector counts as that of all.

use serde::Serialize;

const HOURS_PER_DAY: f64 = 24.0;
const HOURS_PER_YEAR: f64 = 8766.0;

/// What is assumed of drives and of those that care for them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Assumptions {
    /// Drives that fail in a year.
    pub afr_percent: f64,
    /// Unrecoverable errors for each bit that is read.
    pub uber: f64,
    /// Drives that come by a latent error in a year.
    pub latent_errors_percent: f64,
    /// From one scrub to the next.
    pub scrub_days: f64,
    /// From a failure to the begin of the rebuild.
    pub replace_hours: f64,
    /// Over which latent errors gather without scrubs.
    pub service_years: f64,
}

impl Assumptions {
    /// - AFR 1.57 %: Backblaze Drive Stats for 2024, all disks.
    /// - UBER 1e-15: what JESD218 demands of client SSDs, and data sheets of disks for servers promise.
    /// - Latent errors of 1.3 % a year: L. Bairavasundaram and others, An Analysis of Latent Sector Errors in
    ///   Disk Drives, SIGMETRICS 2007, has 3.45 % of 1.53 million disks in 32 months.
    /// - A scrub every 30 days, a replacement after 24 hours and 5 years of service: chosen.
    pub const DEFAULT: Self = Self {
        afr_percent: 1.57,
        uber: 1e-15,
        latent_errors_percent: 1.3,
        scrub_days: 30.0,
        replace_hours: 24.0,
        service_years: 5.0,
    };

    pub(super) fn make_sense(&self) -> bool {
        let percent = 0.0..100.0;
        percent.contains(&self.afr_percent)
            && percent.contains(&self.latent_errors_percent)
            && (0.0..1.0).contains(&self.uber)
            && self.replace_hours >= 0.0
            && self.scrub_days > 0.0
            && self.service_years > 0.0
            && [self.replace_hours, self.scrub_days, self.service_years].iter().all(|time| time.is_finite())
    }
}

/// How safe the array is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Durability {
    /// What it rests on.
    pub assumptions: Assumptions,
    /// Mean time to data loss by failures of whole drives alone. `None`: never.
    pub mttdl_years_drives: Option<f64>,
    /// That any data is lost in a year.
    pub loss_per_year_with_scrubs: f64,
    /// The same where nothing scrubs.
    pub loss_per_year_without_scrubs: f64,
    /// That a sector can't be read where the last rebuild needs it.
    pub unreadable_with_scrubs: f64,
    /// The same where nothing scrubs.
    pub unreadable_without_scrubs: f64,
}

impl Durability {
    /// Of an array of so many members of so many bytes.
    pub(super) fn of(
        parities: u16,
        members: usize,
        member_bytes: u64,
        rebuild_seconds: Option<f64>,
        assumptions: Assumptions,
    ) -> Self {
        let hours = assumptions.replace_hours + rebuild_seconds.unwrap_or(0.0) / 3600.0;
        let failures = hourly(assumptions.afr_percent);
        // Members that may fail one after the other, each before the one before is rebuilt.
        let chain = |length: u16| {
            (0..length).map(|lost| remaining(members, lost) * failures).product::<f64>()
                * hours.powi(i32::from(length) - 1)
        };
        let whole = chain(parities + 1);
        let latent = hourly(assumptions.latent_errors_percent);
        let of = |age_hours: f64| {
            let fine = (1.0 - latent_share(latent * age_hours)).ln() + read_whole(member_bytes, &assumptions);
            let unreadable = -(fine * remaining(members, parities)).exp_m1();
            let errors =
                if parities == 0 { remaining(members, 0) * latent } else { chain(parities) * unreadable };
            (-(-(whole + errors) * HOURS_PER_YEAR).exp_m1(), unreadable)
        };
        let (with_scrubs, without) =
            (of(assumptions.scrub_days * HOURS_PER_DAY), of(assumptions.service_years * HOURS_PER_YEAR));
        Self {
            assumptions,
            mttdl_years_drives: (whole > 0.0).then(|| 1.0 / whole / HOURS_PER_YEAR),
            loss_per_year_with_scrubs: with_scrubs.0,
            loss_per_year_without_scrubs: without.0,
            unreadable_with_scrubs: with_scrubs.1,
            unreadable_without_scrubs: without.1,
        }
    }
}

/// The rate of what happens to so many of a hundred in a year.
fn hourly(percent: f64) -> f64 {
    -(-percent / 100.0).ln_1p() / HOURS_PER_YEAR
}

fn remaining(members: usize, lost: u16) -> f64 {
    u32::try_from(members.saturating_sub(lost.into())).map_or(f64::MAX, f64::from)
}

/// The logarithm of the probability that all of a member can be read, by its UBER.
#[expect(clippy::cast_precision_loss, reason = "a probability needs no 53 bits")]
fn read_whole(member_bytes: u64, assumptions: &Assumptions) -> f64 {
    member_bytes as f64 * 8.0 * (-assumptions.uber).ln_1p()
}

/// That something which happens `expected` times in an interval has happened by a moment that is as likely to
/// be any in it.
fn latent_share(expected: f64) -> f64 {
    if expected < 1e-6 { expected / 2.0 } else { 1.0 + (-expected).exp_m1() / expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without latent errors and unreadable sectors.
    const DRIVES_ONLY: Assumptions =
        Assumptions { uber: 0.0, latent_errors_percent: 0.0, ..Assumptions::DEFAULT };
    const TERABYTE: u64 = 1_000_000_000_000;

    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-3, "{found:e} and not {expected:e}");
    }

    /// An AFR by which a drive lasts so many hours on average.
    fn lasting(hours: f64) -> f64 {
        -(-HOURS_PER_YEAR / hours).exp_m1() * 100.0
    }

    #[test]
    fn one_parity_is_as_patterson_gibson_and_katz_have_it() {
        // Their example has drives of 30,000 hours and repairs of one hour. For a group of 10 data and one
        // check disk, MTTF^2 / (11 * 10 * MTTR).
        let assumptions = Assumptions { afr_percent: lasting(30_000.0), replace_hours: 0.5, ..DRIVES_ONLY };
        let durability = Durability::of(1, 11, TERABYTE, Some(1800.0), assumptions);
        assert_near(
            durability.mttdl_years_drives.unwrap() * HOURS_PER_YEAR,
            30_000.0 * 30_000.0 / (11.0 * 10.0),
        );
        assert_near(durability.loss_per_year_with_scrubs, 1.0 - (-HOURS_PER_YEAR * 110.0 / 9e8_f64).exp());
    }

    #[test]
    fn two_parities_are_as_chen_and_others_have_it() {
        let assumptions = Assumptions { afr_percent: lasting(1e6), replace_hours: 10.0, ..DRIVES_ONLY };
        let durability = Durability::of(2, 8, TERABYTE, Some(36_000.0), assumptions);
        let hours = 1e18 / (8.0 * 7.0 * 6.0 * 400.0);
        assert_near(durability.mttdl_years_drives.unwrap() * HOURS_PER_YEAR, hours);
    }

    #[test]
    fn a_sector_that_a_rebuild_cant_read_is_a_loss() {
        // 8e13 bits of ten members of a terabyte each: 1 - exp(-0.08) at 1e-15.
        let assumptions = Assumptions { latent_errors_percent: 0.0, ..Assumptions::DEFAULT };
        let durability = Durability::of(1, 11, TERABYTE, Some(0.0), assumptions);
        assert_near(durability.unreadable_with_scrubs, 1.0 - (-0.08_f64).exp());
        let failures = 11.0 * -(1.0 - 0.0157_f64).ln();
        let second = 10.0 * -(1.0 - 0.0157_f64).ln() * 24.0 / HOURS_PER_YEAR;
        let rate = failures * (second + durability.unreadable_with_scrubs);
        assert_near(durability.loss_per_year_with_scrubs, 1.0 - (-rate).exp());
        let two = Durability::of(2, 11, TERABYTE, Some(0.0), assumptions);
        assert!(two.loss_per_year_with_scrubs < durability.loss_per_year_with_scrubs / 100.0);
        // When two are lost there are nine to read.
        assert_near(two.unreadable_with_scrubs, 1.0 - (-0.072_f64).exp());
    }

    #[test]
    fn latent_errors_are_half_an_interval_old_and_gather_without_scrubs() {
        let assumptions = Assumptions { uber: 0.0, ..Assumptions::DEFAULT };
        let of =
            |scrub_days| Durability::of(1, 2, TERABYTE, Some(0.0), Assumptions { scrub_days, ..assumptions });
        let yearly = -(1.0 - 0.013_f64).ln();
        assert_near(of(30.0).unreadable_with_scrubs, yearly * 15.0 / 365.25);
        assert_near(of(60.0).unreadable_with_scrubs, yearly * 30.0 / 365.25);
        let expected = yearly * 5.0;
        assert_near(of(30.0).unreadable_without_scrubs, 1.0 - (1.0 - (-expected).exp()) / expected);
        assert!(of(30.0).loss_per_year_with_scrubs < of(30.0).loss_per_year_without_scrubs / 10.0);
    }

    #[test]
    fn without_parity_the_first_failure_and_the_first_latent_error_lose_data() {
        let durability = Durability::of(0, 4, TERABYTE, None, Assumptions::DEFAULT);
        let survives = (1.0 - 0.0157_f64).powi(4) * (1.0 - 0.013_f64).powi(4);
        assert_near(durability.loss_per_year_with_scrubs, 1.0 - survives);
        assert_near(durability.loss_per_year_without_scrubs, 1.0 - survives);
    }

    #[test]
    fn drives_that_never_fail_lose_nothing() {
        let never = Assumptions { afr_percent: 0.0, ..Assumptions::DEFAULT };
        let durability = Durability::of(1, 4, TERABYTE, Some(1.0), never);
        assert!(durability.mttdl_years_drives.is_none() && durability.loss_per_year_without_scrubs < 1e-18);
    }
}
