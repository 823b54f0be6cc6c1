/// x
pub fn fuzz_nvme(_: &[u8]) {}
