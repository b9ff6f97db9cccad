//! A context allocates nothing for a message.

use std::time::Duration;

use millrace_counting_allocator::allocations;
use millrace_krb5::{Context, Enctype, PLAIN_AT, Parameters, Role};

#[test]
fn messages_are_processed_without_the_heap() {
    for enctype in Enctype::ALL {
        let key = &[7; 32][..enctype.key_len()];
        let [initiator, acceptor] = [Role::Initiator, Role::Acceptor].map(|role| {
            let end = Duration::from_secs(1);
            Context::new(&Parameters { role, enctype, key, acceptor_subkey: true, sequence: 0, end }).unwrap()
        });
        let mut token = vec![0x5a; PLAIN_AT + 100_000 + initiator.wrap_tail()];
        let before = allocations();
        let mic = initiator.mic([&token[..7], &token[7..]]);
        acceptor.verify([&token[..]], &mic).unwrap();
        let (first, second) = token.split_at_mut(50_001);
        initiator.wrap(&mut [first, second], [1; 16]).unwrap();
        assert_eq!(acceptor.unwrap(&mut [first, second]).unwrap(), PLAIN_AT..PLAIN_AT + 100_000);
        assert_eq!(allocations() - before, 0, "{enctype}");
    }
}
