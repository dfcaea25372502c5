use super::*;

fn memory() -> Arc<Memory> {
    Memory::new(MemoryLimits { all: 40_000, user: 20_000, address: 4000, loopback_address: 0 })
}

fn address(last: u8) -> Owner {
    Owner::Address(IpAddr::from([10, 0, 0, last]))
}

fn used(memory: &Memory) -> usize {
    let by_kind = memory.by_kind().map(|(_, bytes, _)| bytes).sum::<usize>();
    assert_eq!(by_kind, memory.used());
    by_kind
}

#[test]
fn kinds_are_listed_in_order() {
    assert!(Kind::ALL.iter().enumerate().all(|(at, (kind, ..))| *kind as usize == at));
}

#[test]
fn charge_is_released_on_drop() {
    let memory = memory();
    let account = memory.account(address(1));
    let mut charge = account.charge(Kind::Input, 600).unwrap();
    assert_eq!((account.bytes(), used(&memory)), (600, 600));
    assert_eq!(charge.resize(1001), Err(OverLimit(Bound::MemoryOfAddress)));
    assert_eq!(charge.bytes(), 600, "a refused charge stays as it is");
    assert_eq!(charge.resize(100), Ok(()));
    assert!(account.charge(Kind::Input, 900).is_ok());
    assert_eq!((account.bytes(), used(&memory)), (100, 100));
    let refused = memory.by_kind().filter(|(.., refused)| *refused > 0).map(|(kind, ..)| kind);
    assert_eq!(refused.collect::<Vec<_>>(), [Kind::Input]);
    drop(charge);
    assert_eq!((account.bytes(), used(&memory)), (0, 0));
}

#[test]
fn owners_have_bounds_of_their_own_and_a_total() {
    let memory = memory();
    let charges =
        (0..20).map_while(|last| memory.account(address(last)).charge(Kind::Input, 999).ok()).collect::<Vec<_>>();
    assert_eq!(charges.len(), 10, "the bound of all");
    drop(charges);
    let user = |realm: &str| memory.account_of(&Identity { realm: realm.into(), ..identity() }, None);
    let (first, second) = (user("a"), user("b"));
    let _charges = [&first, &second].map(|account| account.charge(Kind::Input, 5000).unwrap());
    assert!(first.is_full() && user("a").is_full());
}

fn identity() -> Identity {
    Identity::user(Text::from_static("alice"))
}

#[test]
fn parts_of_a_bound_are_independent() {
    let memory = memory();
    let account = memory.account(address(1));
    let parts = [(Kind::Input, 1000), (Kind::Unacknowledged, 250), (Kind::Routes, 500), (Kind::Subscriptions, 2250)];
    let charges = parts.map(|(kind, bytes)| {
        let charge = account.charge(kind, bytes).unwrap();
        assert!(account.charge(kind, 1).is_err(), "{kind:?}");
        charge
    });
    assert!(account.charge(Kind::Wills, 1).is_err());
    assert_eq!((account.bytes(), used(&memory)), (4000, 4000));
    drop(charges);
    // A charge beyond the limits takes no room from packets.
    let _held = account.charge_always(Kind::Unacknowledged, 10_000);
    assert!(account.charge(Kind::Input, 1000).is_ok());
}

#[test]
fn loopback_has_a_bound_of_its_own() {
    let memory = memory();
    for (address, maximum) in [("127.0.0.1", 22_500), ("::1", 22_500), ("10.0.0.1", 2250), ("2001:db8::1", 2250)] {
        let account = memory.account_of(&Identity::anonymous(), Some(address.parse().unwrap()));
        let mut charge = account.charge(Kind::Subscriptions, 2250).unwrap();
        assert!(charge.may_become(maximum), "{address}");
        assert_eq!(charge.resize(2251).is_ok(), maximum > 2250, "{address}");
    }
}

#[test]
fn session_allowance_is_capped_at_half_of_the_total() {
    let memory = Memory::new(MemoryLimits { all: 16 << 20, user: 0, address: 1 << 20, loopback_address: 0 });
    let half = (9 << 20) / 2;
    let sessions = |last| {
        let account = memory.account(address(last));
        let charges = std::iter::repeat_with(|| account.charge(Kind::Sessions, 2048)).map_while(Result::ok);
        charges.take(10_000).collect::<Vec<_>>()
    };
    let first = sessions(1);
    assert_eq!(memory.account(address(1)).bytes(), half);
    let second = sessions(2);
    assert_eq!(memory.account(address(2)).bytes(), half - (9 << 20) / 8, "an eighth is for small owners");
    assert!(memory.account(address(3)).charge(Kind::Sessions, SMALL_OWNER).is_ok());
    drop((first, second));
}

#[test]
fn session_raises_the_bound_of_its_owner() {
    let memory = memory();
    let account = memory.account(address(1));
    let session = account.charge(Kind::Sessions, 2000).unwrap();
    assert!(account.charge(Kind::Subscriptions, 2250 + SESSION_ALLOWANCE - 2000).is_ok());
    assert!(account.charge(Kind::Subscriptions, 2251 + SESSION_ALLOWANCE - 2000).is_err());
    drop(session);
    assert!(account.charge(Kind::Subscriptions, 2251).is_err());
}

#[test]
fn connected_clients_raise_the_bound_for_subscriptions_alone() {
    let memory = Memory::new(MemoryLimits { all: 16 << 20, user: 0, address: 1 << 20, loopback_address: 0 });
    let (account, all) = (memory.account(address(1)), 9 << 20);
    let bound = all / 16;
    let clients: Vec<_> = (0..10).map(|_| account.connected()).collect();
    let mut charge = Charge::nothing(&account, Kind::Subscriptions);
    assert!(charge.may_become(bound + 10 * CLIENT_ALLOWANCE) && !charge.may_become(bound + 10 * CLIENT_ALLOWANCE + 1));
    charge.resize(10 * CLIENT_ALLOWANCE).unwrap();
    assert!(account.charge(Kind::Wills, bound).is_ok() && account.charge(Kind::Wills, bound + 1).is_err());
    drop(clients);
    assert!(account.charge(Kind::Wills, 1).is_err() && !charge.may_become(charge.bytes() + 1), "what is there stays");
    drop(charge);
    let _clients: Vec<_> = (0..1000).map(|_| account.connected()).collect();
    let charge = Charge::nothing(&account, Kind::Subscriptions);
    assert!(charge.may_become(all / 4 * 3) && !charge.may_become(all / 4 * 3 + 1), "a quarter is for others");
}

#[test]
fn subscriptions_of_an_absent_client_keep_their_allowance() {
    let memory = Memory::new(MemoryLimits { all: 16 << 20, user: 0, address: 1 << 20, loopback_address: 0 });
    let (account, bound) = (memory.account(address(1)), (9 << 20) / 16);
    let away = |bytes| {
        let mut charge = account.charge_always(Kind::Subscriptions, bytes);
        charge.set_away(true);
        charge
    };
    let mut charges: Vec<_> = [20_000; 50].into_iter().chain([CLIENT_ALLOWANCE + 1000]).map(away).collect();
    // Memory of the last one beyond its allowance counts, and unused allowances of the others are for no client.
    let has_room = |bytes| account.check(Kind::Subscriptions, bytes).is_ok();
    assert!(has_room(bound - 1000) && !has_room(bound - 999));
    assert!(account.check(Kind::Wills, bound - 1000).is_ok() && account.check(Kind::Wills, bound - 999).is_err());
    charges[0].set(10_000);
    assert!(has_room(bound - 1000) && !has_room(bound - 999));
    // Its client is back, without the allowance of its connection.
    charges[0].set_away(false);
    assert!(has_room(bound - 11_000) && !has_room(bound - 10_999));
    let other = memory.account(address(2));
    let mut last = charges.pop().unwrap();
    last.move_to(&other);
    assert_eq!((account.away.load(Ordering::Relaxed), other.away.load(Ordering::Relaxed)), (980_000, CLIENT_ALLOWANCE));
    drop((charges, last));
    assert_eq!((account.away.load(Ordering::Relaxed), other.away.load(Ordering::Relaxed)), (0, 0));
    let _charges: Vec<_> = (0..1000).map(|_| away(CLIENT_ALLOWANCE)).collect();
    assert!(!has_room(1), "three quarters of the whole are the most");
}

#[test]
fn refusal_names_the_key_of_its_bound() {
    let memory = Memory::new(MemoryLimits { all: 64_000, user: 4000, address: 4000, loopback_address: 4000 });
    let anonymous = |address: &str| memory.account_of(&Identity::anonymous(), Some(address.parse().unwrap()));
    let key = |account: Arc<Account>| account.check(Kind::Wills, 2251).unwrap_err();
    assert_eq!(key(anonymous("10.0.0.1")), Bound::MemoryOfAddress);
    assert_eq!(key(anonymous("::1")), Bound::MemoryOfLoopback);
    assert_eq!(key(memory.account_of(&identity(), None)), Bound::MemoryOfUser);
    let _rest = memory.account(Owner::Restored).charge_always(Kind::Wills, 36_000);
    assert_eq!(key(memory.account(Owner::Restored)), Bound::MemoryOfAll);
}

#[test]
fn charge_moves_to_another_account_beyond_its_limit() {
    let memory = memory();
    let (from, to) = (memory.account(Owner::Restored), memory.account(address(1)));
    let mut charge = from.charge(Kind::Sessions, 7000).unwrap();
    charge.move_to(&to);
    assert_eq!((from.bytes(), to.bytes(), used(&memory)), (0, 7000, 7000));
    charge.move_to(&to);
    assert_eq!(to.bytes(), 7000);
}

#[test]
fn owner_has_one_account_until_it_is_unused() {
    let memory = memory();
    let account = memory.account(address(1));
    let charge = memory.account(address(1)).charge(Kind::Wills, 1).unwrap();
    assert!(Arc::ptr_eq(&account, &charge.account));
    drop(account);
    assert_eq!(memory.accounts.len(), 1);
    drop(charge);
    assert_eq!(memory.accounts.len(), 0);
}
