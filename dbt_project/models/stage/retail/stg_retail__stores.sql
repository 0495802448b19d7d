{#- Written by `lakehouse scaffold`, its own while unchanged: 9de252aafd3ae280 -#}
{{ stage(
  source_model='parsed_retail__stores',
  hashed_columns={
    'hk_store': ['store_id'],
    'hd_store_details': {'is_hashdiff': true, 'columns': ['store_name', 'city', 'state', 'opened_at']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
