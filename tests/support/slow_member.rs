use tenbin_codec::QoS;

use super::{RawClient, share};

/// Asserts that of two members at QoS 0 the one that does not read gets few of the messages, and that none is lost.
pub(crate) fn assert_slow_member_gets_few(connect: impl Fn(&str) -> RawClient) {
    let mut members = [connect("reads"), connect("stalls")];
    for member in &mut members {
        member.subscribe(&share("group", "work"), QoS::AtMostOnce);
    }
    let [mut reader, mut staller] = members;
    let mut publisher = connect("publisher");
    let mut read = Vec::new();
    for number in 0..600 {
        publisher.publish("work", &format!("{number:0>50000}"), QoS::AtMostOnce);
        publisher.settle();
        read.extend(reader.drain());
    }
    let stalled = staller.drain();
    // The kernels and the output hold a part; then the broker knows that the messages are not written.
    assert!(read.len() > 350, "{} were read, {} were not", read.len(), stalled.len());
    let mut numbers = read.iter().chain(&stalled).map(|message| message.payload.clone()).collect::<Vec<_>>();
    numbers.sort();
    let expected = (0..600).map(|number| format!("{number:0>50000}")).collect::<Vec<_>>();
    assert!(numbers == expected, "lost or doubled: {} of 600", numbers.len());
}
