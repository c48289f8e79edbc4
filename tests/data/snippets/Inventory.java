package shop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** The items of a shop. It isn't safe for concurrent use. */
public final class Inventory {
    private final Map<String, List<Item>> items = new HashMap<>();

    public record Item(String name, int count) {
        public Item {
            if (count < 0) {
                throw new IllegalArgumentException("count of " + name + " is " + count);
            }
        }
    }

    public void add(String shelf, Item item) {
        items.computeIfAbsent(shelf, key -> new ArrayList<>()).add(item);
    }

    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        for (Map.Entry<String, List<Item>> entry : items.entrySet()) {
            text.append(entry.getKey()).append(": ");
            for (Item item : entry.getValue()) {
                text.append(item.name()).append(' ').append(item.count()).append(", ");
            }
        }
        return text.toString();
    }

    @Override
    public int hashCode() {
        return items.hashCode();
    }

    public Optional<Item> largest(
            String shelf,
            int minimum) {
        Item found = null;
        for (Item item : items.getOrDefault(shelf, List.of())) {
            if (item.count() >= minimum && (found == null || item.count() > found.count())) {
                found = item;
            }
        }
        return Optional.ofNullable(found);
    }
}
