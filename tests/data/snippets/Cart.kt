package shop

import java.math.BigDecimal

/** What a customer wants to buy; it isn't paid yet. */
class Cart(private val owner: String) {
    private val lines = mutableMapOf<String, MutableList<Line>>()

    data class Line(val name: String, val price: BigDecimal, val count: Int = 1)

    val total: BigDecimal
        get() = lines.values.flatten().fold(BigDecimal.ZERO) { sum, line -> sum + line.price * line.count.toBigDecimal() }

    fun add(line: Line) {
        require(line.count > 0) { "the count of ${line.name} is ${line.count}" }
        lines.getOrPut(line.name) { mutableListOf() }.add(line)
    }

    fun remove(name: String): Boolean {
        val found = lines.remove(name) ?: return false
        found.forEach { line ->
            println("removed ${line.name} (${line.price})")
        }
        return true
    }

    fun describe(): String = when {
        lines.isEmpty() -> "$owner has nothing"
        lines.size == 1 -> "$owner has one thing"
        else -> {
            val names = lines.keys.joinToString(", ", prefix = "(", postfix = ")")
            "$owner has $names"
        }
    }
}
