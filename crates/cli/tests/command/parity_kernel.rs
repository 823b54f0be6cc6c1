//! PINSTRIPE_PARITY, which chooses the parity kernel of a command.

use pinstripe_parity::Kernel;
use serde_json::Value;

use crate::world::{Ran, World};

const VARIABLE: &str = "PINSTRIPE_PARITY";
/// What is said of the value `AVX2`, which is no name of a kernel.
const WARNING: [&str; 2] = ["PINSTRIPE_PARITY is ignored", "no parity kernel named \"AVX2\""];

fn bench(value: &str) -> Ran {
    let load = ["--device", "mem:12M", "--chunk", "16K", "--seconds", "0.1", "--warm-up", "0"];
    World::new().run_with((VARIABLE, value), &[&["bench", "--json"], &load[..]].concat()).ok()
}

#[test]
fn a_benchmark_runs_on_the_kernel_that_was_asked_for() {
    for kernel in Kernel::supported() {
        let ran = bench(kernel.name());
        assert_eq!(ran.json()["settings"]["kernel"], kernel.name());
        assert_eq!(ran.error, "");
    }
}

#[test]
fn a_benchmark_warns_of_a_kernel_that_there_is_not_and_runs_on_the_best() {
    let (ran, best) = (bench("AVX2"), bench(""));
    assert_eq!(ran.json()["settings"]["kernel"], best.json()["settings"]["kernel"]);
    assert_eq!(best.error, "", "none was asked for");
    assert_eq!(ran.error.lines().count(), 1, "{}", ran.error);
    assert!(WARNING.iter().all(|words| ran.error.contains(words)), "{}", ran.error);
}

#[test]
fn a_server_warns_of_a_kernel_that_there_is_not_and_serves() {
    let world = World::new();
    let members = world.raid5(3);
    let warnings = |value: &str| -> Vec<Value> {
        let server = world.serve_with((VARIABLE, value), &["--shards", "1"], &members);
        let warnings = server.said.iter().filter(|line| line["event"] == "warning").cloned().collect();
        world.run(&["stop", "data"]).ok();
        assert_eq!(server.ended(), 0);
        warnings
    };
    assert_eq!(warnings("scalar"), Vec::<Value>::new());
    let said = warnings("AVX2");
    assert_eq!(said.len(), 1, "{said:?}");
    let message = said[0]["message"].as_str().unwrap();
    assert!(WARNING.iter().all(|words| message.contains(words)), "{message}");
}
