//! Rows and figures of the tables.

/// The name by which a process is told what to be, and what the table calls it.
pub struct Row(pub &'static str, pub &'static str);

pub fn header(title: &str, columns: &[&str]) {
    println!("\n## {title}\n\n| | {} |", columns.join(" | "));
    println!("|---|{}", "---:|".repeat(columns.len()));
}

pub fn row(title: &str, cells: &[String]) {
    println!("| {title} | {} |", cells.join(" | "));
}

pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// The median of each round's figure over the base's of the same round, and the middle half of them.
pub fn ratio(figures: &[f64], base: &[f64]) -> String {
    let ratios: Vec<_> = figures.iter().zip(base).map(|(figure, base)| figure / base).collect();
    let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(&ratios, share));
    format!("{median:.2} ({low:.2}–{high:.2})")
}

/// With the thousands apart, as the pages write them.
pub fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    format!("{}{}", if value <= -0.5 { "-" } else { "" }, groups.join(" "))
}
