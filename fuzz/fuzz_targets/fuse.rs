//! A request of the kernel's FUSE: whatever it says, it is within its bounds or refused by number.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pinstripe_export::fuse::fuzz_fuse(data));
