{#- Written by `lakehouse scaffold`, its own while unchanged: c035e2c3fd5412ab -#}
{{ stage(
  source_model='parsed_retail__customers',
  hashed_columns={
    'hk_customer': ['customer_id'],
    'hd_customer_pii': {'is_hashdiff': true, 'columns': ['first_name', 'last_name', 'email']},
    'hd_customer_loyalty': {'is_hashdiff': true, 'columns': ['loyalty_tier', 'created_at']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
