//! A peer's bytes, cut anywhere: the NVMe/TCP core doesn't panic, and comes to the same as from one piece.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pinstripe_nvme::fuzz_nvme(data));
