# frozen_string_literal: true

require 'bigdecimal'

module Bank
  # An account; it can't go below its limit.
  class Account
    class LimitError < StandardError; end

    attr_reader :owner, :balance

    def initialize(owner, limit: 0)
      @owner = owner
      @limit = limit
      @balance = BigDecimal('0')
      @listeners = []
    end

    def deposit(amount)
      raise ArgumentError, "amount is #{amount}" unless amount.positive?

      @balance += amount
      @listeners.each { |listener| listener.call(:deposit, amount) }
    end

    def withdraw(amount)
      if @balance - amount < -@limit
        raise LimitError, "#{owner} can't withdraw #{amount}"
      elsif amount.zero?
        return
      else
        @balance -= amount
      end
      @listeners.each do |listener|
        listener.call(:withdraw, amount)
      end
    end

    def transfer(amount, to:)
      withdraw(amount)
      begin
        to.deposit(amount)
      rescue ArgumentError => e
        deposit(amount)
        raise e
      end
    end
  end
end
