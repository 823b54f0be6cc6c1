//! An array's own volume under a front end: the scenes that find the deliberate defects pass without them.

use pinstripe_sim::swarm::EXPORT_SCENARIOS;

#[test]
fn what_is_forced_through_a_front_end_outlives_a_crash() {
    for (defect, scene) in EXPORT_SCENARIOS {
        scene().unwrap_or_else(|verdict| panic!("{defect:?}: {verdict}"));
    }
}
