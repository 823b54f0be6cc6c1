//! Which seed finds a deliberate defect.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

use pinstripe_engine::mutants::{Mutant, activate};

thread_local! {
    /// The file in which the first panic of a scene was.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The first of so many seeds with which an assertion of the scene, or of the ledger, fails with the defect
/// and holds without it. A panic of the engine itself finds nothing: that is luck.
pub fn find(mutant: Mutant, seeds: u64, scene: impl Fn(u64)) -> Option<u64> {
    find_with(|is_on| activate(is_on.then_some(mutant)), seeds, scene)
}

/// The same, of a defect that is turned on and off so.
pub fn find_with(turn: impl Fn(bool), seeds: u64, scene: impl Fn(u64)) -> Option<u64> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            let file = info.location().map(|location| location.file().to_owned());
            PANIC.with(|panic| {
                let mut panic = panic.borrow_mut();
                *panic = panic.take().or(file);
            });
            usual(info);
        }));
    });
    let is_found = |seed: &u64| {
        PANIC.take();
        turn(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| scene(*seed)));
        turn(false);
        let by_assertion = |file: String| file.contains("engine/tests/") || file.contains("sim/src/ledger");
        outcome.is_err() && PANIC.take().is_some_and(by_assertion)
    };
    let found = (0..seeds).find(is_found)?;
    scene(found);
    Some(found)
}
