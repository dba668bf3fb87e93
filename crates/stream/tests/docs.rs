//! `docs/kafka.md` says what is so.

use mainstem_kafka::registry;

const PAGE: &str = include_str!("../../../docs/kafka.md");

#[test]
fn the_page_names_what_is_announced() {
    let section = PAGE.split("## What is served").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("its end");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let key = cells.first()?.parse::<i16>().ok()?;
        let (low, high) = cells.get(2)?.split_once(" to ")?;
        Some((key, cells[1].to_owned(), low.parse::<i16>().ok()?, high.parse::<i16>().ok()?))
    };
    let told: Vec<_> = section.lines().filter_map(row).collect();
    let announced = registry::announced().map(|api| {
        let (low, high) = api.announced_versions();
        (api.key, api.name().to_owned(), low, high)
    });
    assert_eq!(told, announced.collect::<Vec<_>>());
}
