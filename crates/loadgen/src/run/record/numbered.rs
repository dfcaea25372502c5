use rustc_hash::FxHashMap;

/// Values by number, of which many may never come: those that have, one after the other, and where each of them is.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    places: Places,
    values: Vec<(u64, T)>,
}

#[derive(Debug)]
enum Places {
    /// One more than the place; 0 for none. Memory that is never touched costs nothing.
    Table(Vec<u32>),
    Map(FxHashMap<u64, u32>),
}

impl<T> Numbered<T> {
    /// For numbers below `end`.
    pub(super) fn new(end: u64) -> Self {
        let places =
            if end <= TABLE_MAX { Places::Table(vec![0; end as usize]) } else { Places::Map(FxHashMap::default()) };
        Self { places, values: Vec::new() }
    }

    /// # Panics
    /// If the number is not below the end.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = match &self.places {
            Places::Table(table) => table[number as usize],
            Places::Map(map) => map.get(&number).copied().unwrap_or(0),
        };
        let place = place.checked_sub(1)?;
        Some(&mut self.values[place as usize].1)
    }

    /// Gives a value to a number that has none.
    ///
    /// # Panics
    /// If the number is not below the end.
    pub(super) fn insert(&mut self, number: u64, value: T) -> &mut T {
        self.values.push((number, value));
        let place = u32::try_from(self.values.len()).expect("four thousand million values do not fit into memory");
        match &mut self.places {
            Places::Table(table) => table[number as usize] = place,
            Places::Map(map) => {
                map.insert(number, place);
            }
        }
        &mut self.values[place as usize - 1].1
    }

    /// All values, by number.
    pub(super) fn into_sorted(self) -> Vec<(u64, T)> {
        let mut values = self.values;
        values.sort_unstable_by_key(|(number, _)| *number);
        values
    }
}

/// Numbers of a table, 16 MiB of memory; more are kept in a hash map.
const TABLE_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_number_in_a_table_and_in_a_map() {
        for end in [100, TABLE_MAX + 1] {
            let mut numbered = Numbered::new(end);
            assert_eq!(numbered.get_mut(end - 1), None);
            numbered.insert(end - 1, "last");
            numbered.insert(0, "first");
            *numbered.get_mut(0).unwrap() = "new";
            assert_eq!(numbered.get_mut(end - 1), Some(&mut "last"));
            assert_eq!(numbered.get_mut(7), None);
            assert_eq!(numbered.into_sorted(), [(0, "new"), (end - 1, "last")]);
        }
    }
}
