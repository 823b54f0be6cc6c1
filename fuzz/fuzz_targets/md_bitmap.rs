//! A bitmap from any bytes: what is accepted keeps its bytes, and its bits are those that are set.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinstripe_md::bitmap::{BitmapHeader, BitmapImage};

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = BitmapHeader::decode(data) {
        assert_eq!(header.encode(), data[..256]);
        for bit in [0, 1, header.bit_count(), u64::MAX] {
            let sectors = header.sectors_of(bit);
            assert!(sectors.start <= sectors.end && sectors.end <= header.sync_size.0);
        }
    }
    let Ok(mut image) = BitmapImage::decode(data) else { return };
    let kept = image.as_bytes().len().min(data.len());
    assert_eq!(image.as_bytes()[..kept], data[..kept]);
    assert_eq!(image.as_bytes().len(), image.page_count() * 4096);
    let set: Vec<_> = image.set_bits().collect();
    assert!(set.iter().all(|bit| image.is_set(*bit) && *bit < image.header().bit_count()));
    assert!(set.iter().all(|bit| image.clear(*bit)));
    assert_eq!(image.set_bits().count(), 0);
    assert!(set.iter().all(|bit| image.set(*bit)));
    assert_eq!(image.as_bytes()[..kept], data[..kept]);
});
