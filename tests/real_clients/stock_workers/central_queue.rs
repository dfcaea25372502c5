/// Times that messages wait in an ideal central queue, in microseconds: an idle worker takes the oldest message at once,
/// the fastest idle worker first.
///
/// `jobs` are arrival and work of each message, in order of their arrival. A worker multiplies the work by its factor.
pub(super) fn waits(jobs: &[(u64, u64)], factors: &[u32]) -> Vec<u64> {
    let mut free = vec![0; factors.len()];
    let wait = |&(arrival, work): &(u64, u64)| {
        let begin = arrival.max(*free.iter().min().expect("a group has workers"));
        let idle = (0..factors.len()).filter(|&worker| free[worker] <= begin);
        let fastest = idle.min_by_key(|&worker| factors[worker]).expect("one is free by then");
        free[fastest] = begin + work * u64::from(factors[fastest]);
        begin - arrival
    };
    jobs.iter().map(wait).collect()
}

#[test]
fn idle_worker_takes_a_message_at_once() {
    assert_eq!(waits(&[(0, 10), (1, 10), (20, 10)], &[1, 1]), [0, 0, 0]);
}

#[test]
fn oldest_message_goes_to_the_first_free_worker() {
    // The second worker, three times slower, is busy until 31, the first until 10, 20 and 30.
    assert_eq!(waits(&[(0, 10), (1, 10), (2, 10), (3, 10), (40, 10)], &[1, 3]), [0, 0, 8, 17, 0]);
}

#[test]
fn fastest_idle_worker_is_first() {
    // The message at 5 goes to the slow worker: the fast one has the first message.
    assert_eq!(waits(&[(0, 10), (5, 10), (12, 10), (23, 10)], &[3, 1]), [0, 0, 0, 0]);
}
