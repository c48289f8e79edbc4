<?php

declare(strict_types=1);

namespace Shop;

use InvalidArgumentException;

/** A report that doesn't read the database itself. */
final class Report
{
    /** @var array<string, float> */
    private array $totals = [];

    public function __construct(private readonly string $title, private readonly array $options = [])
    {
    }

    public function add(string $name, float $price): self
    {
        if ($price < 0) {
            throw new InvalidArgumentException("price of $name is {$price}");
        }
        $this->totals[$name] = ($this->totals[$name] ?? 0.0) + $price;

        return $this;
    }

    public function render(): string
    {
        $lines = ['<h1>' . htmlspecialchars($this->title) . '</h1>'];
        foreach ($this->totals as $name => $total) {
            $lines[] = sprintf('<p>%s: %.2f</p>', htmlspecialchars($name), $total);
        }
        if ($this->options['sum'] ?? false) {
            $lines[] = '<p>' . array_sum($this->totals) . '</p>';
        } elseif ($lines === []) {
            return '';
        } else {
            $lines[] = '<hr>';
        }

        return implode("\n", $lines);
    }
}
