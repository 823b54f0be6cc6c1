//! Lines of the control socket, for the server and for its client: understood or refused, and shown to people
//! unharmed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pinstripe_control::fuzz::fuzz_control(data));
