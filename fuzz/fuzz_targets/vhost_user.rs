//! A monitor's messages, or a machine's memory with a ring in it: the vhost-user core doesn't panic, and
//! ends.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pinstripe_export::vhost_user::fuzz_vhost_user(data));
