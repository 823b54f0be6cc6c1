//! A client's bytes, cut anywhere: the NBD core doesn't panic, and comes to the same as from one piece.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pinstripe_export::nbd::fuzz_nbd(data));
